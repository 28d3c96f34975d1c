import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeSemaphore } from '../../../src/lib/turns/semaphore.ts'

test('the permits are never exceeded, and a permit that is released twice is one permit', () => {
  const semaphore = makeSemaphore(2)
  const [first, second] = [semaphore.tryAcquire(), semaphore.tryAcquire()]
  assert.ok(first !== null && second !== null)
  assert.equal(semaphore.tryAcquire(), null)
  first()
  first()
  assert.equal(semaphore.inUse, 1)
  assert.ok(semaphore.tryAcquire() !== null)
  assert.equal(semaphore.tryAcquire(), null)
  assert.equal(makeSemaphore(0).tryAcquire(), null)
})

test('work runs with at most the permits at once, in the order of the calls, also after a failure', async () => {
  const semaphore = makeSemaphore(2)
  const order: number[] = []
  let running = 0
  const work = async (call: number): Promise<void> => {
    running += 1
    assert.ok(running <= 2)
    order.push(call)
    await new Promise((resolve) => setImmediate(resolve))
    running -= 1
    if (call === 1) throw new Error('failed')
  }
  const results = await Promise.allSettled([0, 1, 2, 3, 4].map((call) => semaphore.run(() => work(call))))
  assert.deepEqual(order, [0, 1, 2, 3, 4])
  assert.deepEqual(
    results.map(({ status }) => status === 'fulfilled'),
    [true, false, true, true, true],
  )
  assert.equal(semaphore.inUse, 0)
})

test('a permit that is released goes to the caller that waits, not to one that comes later', async () => {
  const semaphore = makeSemaphore(1)
  const release = semaphore.tryAcquire()
  const waits = semaphore.run(() => Promise.resolve('served'))
  release?.()
  assert.equal(semaphore.tryAcquire(), null)
  assert.equal(await waits, 'served')
  assert.notEqual(semaphore.tryAcquire(), null)
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { makeFairSemaphore } from '../../../src/lib/turns/fair-semaphore.ts'

/** Resolves once all code that awaits resolved promises has continued. */
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

test('permits and shares are never exceeded, and every caller that waits is served in the end', async () => {
  const steps = fc.array(fc.record({ key: fc.constantFrom('a', 'b', 'c'), releases: fc.boolean() }), { maxLength: 80 })
  await fc.assert(
    fc.asyncProperty(steps, async (asked) => {
      const semaphore = makeFairSemaphore({ permits: 4, permitsPerKey: 2, waitersPerKey: 50 })
      const held: { readonly key: string; readonly release: () => void }[] = []
      let asking = 0
      let served = 0
      const check = (): void => {
        assert.ok(semaphore.inUse <= 4)
        for (const key of ['a', 'b', 'c']) assert.ok(held.filter((one) => one.key === key).length <= 2)
      }
      for (const { key, releases } of asked) {
        asking += 1
        void semaphore.acquire(key)?.then((end) => {
          served += 1
          held.push({ key, release: end })
        })
        await settled()
        check()
        if (releases) held.shift()?.release()
        await settled()
        check()
      }
      while (held.length > 0) {
        held.shift()?.release()
        await settled()
        check()
      }
      assert.equal(served, asking)
      assert.deepEqual([semaphore.inUse, semaphore.waiting], [0, 0])
    }),
    { numRuns: 50 },
  )
})

test('the only caller of a key waits for a few callers of another key, however many callers that key has', async () => {
  const semaphore = makeFairSemaphore({ permits: 2, permitsPerKey: 2, waitersPerKey: 1_000 })
  const order: string[] = []
  const ask = async (key: string): Promise<void> => {
    const release = await semaphore.acquire(key)
    await settled()
    order.push(key)
    release?.()
  }
  const greedy = Array.from({ length: 1_000 }, () => ask('greedy'))
  await ask('modest')
  assert.ok(order.indexOf('modest') <= 4, String(order.indexOf('modest')))
  await Promise.all(greedy)
})

test('a key with too many waiting callers is refused at once, and no other key is', () => {
  const semaphore = makeFairSemaphore({ permits: 1, permitsPerKey: 1, waitersPerKey: 3 })
  for (let asked = 0; asked < 4; asked++) assert.notEqual(semaphore.acquire('greedy'), null)
  assert.equal(semaphore.acquire('greedy'), null)
  assert.notEqual(semaphore.acquire('modest'), null)
})

test('a key has a lower share while another key uses the semaphore, and its whole share again afterwards', async () => {
  let nowMs = 0
  const amongOthers = { permitsPerKey: 1, forMs: 1_000, nowMs: () => nowMs }
  const semaphore = makeFairSemaphore({ permits: 6, permitsPerKey: 3, waitersPerKey: 10, amongOthers })
  const releases: (() => void)[] = []
  const ask = async (key: string): Promise<void> => {
    const release = await semaphore.acquire(key)
    if (release !== null) releases.push(release)
  }
  const alone = [ask('a'), ask('a')]
  await Promise.all(alone)
  assert.equal(semaphore.isAmongOthers('a'), false)
  await ask('b')
  assert.equal(semaphore.isAmongOthers('a'), true)
  const shared = ask('a')
  await settled()
  assert.equal(semaphore.waiting, 1)
  releases.shift()?.()
  await settled()
  assert.equal(semaphore.waiting, 1) // it still has a permit
  releases.shift()?.()
  await shared
  assert.deepEqual([semaphore.inUse, semaphore.waiting], [2, 0])
  nowMs = 1_000
  assert.equal(semaphore.isAmongOthers('a'), false)
  await Promise.all([ask('a'), ask('a')])
  assert.deepEqual([semaphore.inUse, semaphore.waiting], [4, 0])
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeKeyedMutex } from '../../../src/lib/turns/keyed-mutex.ts'

test('work under one key runs in the order of the calls, also after a failure, and other keys do not wait', async () => {
  const mutex = makeKeyedMutex()
  const steps: string[] = []
  const gate = Promise.withResolvers<void>()
  const first = mutex.run('a', async () => {
    steps.push('a1 begins')
    await gate.promise
    steps.push('a1 ends')
    throw new Error('failed')
  })
  const second = mutex.run('a', () => Promise.resolve(steps.push('a2')))
  await mutex.run('b', () => Promise.resolve(steps.push('b')))
  assert.deepEqual(steps, ['a1 begins', 'b'])
  gate.resolve()
  await assert.rejects(first, /failed/)
  await second
  await mutex.run('a', () => Promise.resolve(steps.push('a3')))
  assert.deepEqual(steps, ['a1 begins', 'b', 'a1 ends', 'a2', 'a3'])
})

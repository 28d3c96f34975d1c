import assert from 'node:assert/strict'
import { test } from 'node:test'
import { nextTurn } from '../../../src/lib/turns/next-turn.ts'

test('no two callers get the same turn of the event loop', async () => {
  let turn = 0
  const counting = (async () => {
    for (; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve))
  })()
  const turns = await Promise.all(Array.from({ length: 5 }, () => nextTurn().then(() => turn)))
  await counting
  assert.equal(new Set(turns).size, 5, turns.join(', '))
})

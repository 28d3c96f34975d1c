import assert from 'node:assert/strict'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { test } from 'node:test'
import { makeFairTurns } from '../../../src/lib/turns/fair-turns.ts'

/** Turns in which each piece of work takes a millisecond, and the keys of the pieces that have begun. */
function makeWork(budgetMs: number) {
  let nowMs = 0
  const begun: string[] = []
  const turns = makeFairTurns({ budgetMs, othersForMs: 1_000, nowMs: () => nowMs })
  const work = async (key: string, prepare?: () => Promise<void>): Promise<void> => {
    const turn = turns.next(key)
    if (turn !== null) await turn
    if (prepare !== undefined) await prepare()
    nowMs += 1
    begun.push(key)
  }
  return { work, begun, useByAnother: () => turns.next('another') }
}

test('work begins at once until the time of the turn is used up, and the rest in later turns', async () => {
  const { work, begun, useByAnother } = makeWork(2)
  void useByAnother()
  const all = Promise.all(Array.from({ length: 5 }, () => work('a')))
  assert.equal(begun.length, 2)
  await nextTurn()
  assert.equal(begun.length, 4)
  await all
  assert.equal(begun.length, 5)
})

test('a piece of a key begins at once, however much of another key waits, and its next ones in turn with the others', async () => {
  const { work, begun, useByAnother } = makeWork(2)
  void useByAnother()
  const flood = Array.from({ length: 100 }, () => work('a'))
  const few = [work('b'), work('b')]
  assert.deepEqual(begun, ['a', 'a', 'b'])
  await nextTurn()
  assert.deepEqual(begun, ['a', 'a', 'b', 'a', 'b'])
  await Promise.all([...flood, ...few])
  assert.equal(begun.length, 102)
})

test('work that takes longer than a turn begins nevertheless, one piece in each turn', async () => {
  const { work, begun, useByAnother } = makeWork(0.5)
  void useByAnother()
  const all = Promise.all([work('a'), work('a'), work('a')])
  await nextTurn()
  assert.equal(begun.length, 2)
  await all
  assert.equal(begun.length, 3)
})

test('the work of a key that is alone begins at once', async () => {
  const { work, begun } = makeWork(2)
  const all = Array.from({ length: 5 }, () => work('a'))
  assert.equal(begun.length, 5)
  await Promise.all(all)
})

test('without a time for others, the work of a key that is alone is spread, too', async () => {
  const turns = makeFairTurns({ budgetMs: 0, nowMs: () => 0 })
  assert.equal(turns.next('a'), null)
  const waiting = turns.next('a')
  assert.notEqual(waiting, null)
  await waiting
})

test('work that begins after some promises takes its time from the turn, too', async () => {
  const { work, begun, useByAnother } = makeWork(1)
  void useByAnother()
  const late = async (): Promise<void> => {
    for (let n = 0; n < 10; n += 1) await Promise.resolve()
  }
  void work('a')
  const all = Promise.all(Array.from({ length: 5 }, () => work('a', late)))
  await nextTurn()
  assert.equal(begun.length, 2)
  await all
})

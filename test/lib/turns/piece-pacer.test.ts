import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makePiecePacer } from '../../../src/lib/turns/piece-pacer.ts'
import { countPerTurn } from '../../support/most-per-turn.ts'

test('many streams together take few pieces in a turn, each gets all of its own, and keys take turns', async () => {
  const pacer = makePiecePacer(0)
  const perTurn = countPerTurn()
  const ended: string[] = []
  const run = async (key: string, pieces: number): Promise<void> => {
    const pace = pacer.paceOf(key)
    for (let left = pieces; left > 0; left -= 1) {
      perTurn.count()
      if (!pace.count()) await pace.wait()
    }
    ended.push(key)
  }
  await Promise.all([...Array.from({ length: 100 }, () => run('many', 600)), run('one', 600)])
  assert.ok(perTurn.most() <= 512 + 101, `${String(perTurn.most())} pieces in a turn`)
  assert.ok(ended.indexOf('one') <= 10, `one ended after ${String(ended.indexOf('one'))} of the others`)
})

test('streams with few pieces each wait for no more than a turn, however many there are', async () => {
  const pacer = makePiecePacer(1_000_000)
  const paces = Array.from({ length: 2_000 }, (_, nth) => pacer.paceOf(String(nth)))
  await Promise.all(
    paces.map(async (pace) => {
      for (let left = 10; left > 0; left -= 1) if (!pace.count()) await pace.wait()
    }),
  )
})

test('a stream that is gone keeps no other one of its key waiting', async () => {
  const pacer = makePiecePacer(1_000_000)
  const paces = Array.from({ length: 100 }, () => pacer.paceOf('one'))
  for (const pace of paces) while (pace.count());
  await Promise.all(paces.map((pace) => pace.wait(() => true)))
})

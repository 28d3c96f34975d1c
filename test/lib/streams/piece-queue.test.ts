import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { makePieceQueue } from '../../../src/lib/streams/piece-queue.ts'

test('what was added is taken out once, in order, whatever the size of its pieces', () => {
  const pieces = fc.array(fc.uint8Array({ maxLength: 8 }), { maxLength: 2_000 })
  fc.assert(
    fc.property(fc.array(pieces, { maxLength: 4 }), (rounds) => {
      const queue = makePieceQueue()
      for (const round of rounds) {
        for (const piece of round) queue.add(Buffer.from(piece))
        const all = Buffer.concat(round)
        assert.equal(queue.bytes, all.length)
        assert.ok(queue.take().equals(all))
        assert.equal(queue.bytes, 0)
      }
      assert.equal(queue.take().length, 0)
    }),
  )
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { decodeLogCursor, encodeLogCursor } from '../../../src/contract/streams/operations.ts'

test('a cursor has the format that the public client accepts', () => {
  assert.equal(encodeLogCursor({ generation: 1, offset: 2 }), 'AQEAAAAAAAAAAgAAAAAAAAA=')
})

test('every position has one cursor, which decodes to that position', () => {
  const count = fc.maxSafeNat()
  fc.assert(
    fc.property(count, count, (generation, offset) => {
      assert.deepEqual(decodeLogCursor(encodeLogCursor({ generation, offset })), { generation, offset })
    }),
  )
})

test('any other text is refused: another number of parts, length, alphabet or padding, and integers above the safe maximum', () => {
  const bytes = Buffer.from('AQEAAAAAAAAAAgAAAAAAAAA=', 'base64')
  const changed = (at: number, to: number): string =>
    Buffer.from(bytes)
      .fill(to, at, at + 1)
      .toString('base64')
  const texts = [
    '',
    '7',
    'AQEAAAAAAAAAAgAAAAAAAAA',
    'AQEAAAAAAAAAAgAAAAAAAAB=',
    'AQEAAAAAAAAAAgAAAAAAAAA= ',
    changed(0, 2),
    changed(8, 1),
    changed(16, 255),
    bytes.subarray(0, 16).toString('base64'),
    Buffer.concat([bytes, bytes.subarray(1)]).toString('base64'),
    Buffer.alloc(17, 255).fill(1, 0, 1).toString('base64url'),
  ]
  for (const text of texts) assert.equal(decodeLogCursor(text), null, text)
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { array, assert as hold, integer, property, string, uint8Array } from 'fast-check'
import { makeLineSplitter, MAX_LINE_BYTES } from '../../../src/worker/logs/output-stream.ts'

test('text keeps every character, however its bytes are split over chunks', () => {
  hold(
    property(string({ unit: 'binary', maxLength: 60 }), array(integer({ min: 1, max: 7 })), (text, sizes) => {
      assert.equal(cut(Buffer.from(text), sizes).join(''), Buffer.from(text).toString())
    }),
  )
})

test('invalid UTF-8 is decoded as if it came in one piece', () => {
  hold(
    property(uint8Array({ maxLength: 60 }), array(integer({ min: 1, max: 7 })), (bytes, sizes) => {
      assert.equal(cut(Buffer.from(bytes), sizes).join(''), new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes))
    }),
  )
})

test('every line ends with its line feed, except perhaps the last one', () => {
  assert.deepEqual(cut(Buffer.from('a\n\nb\r\nc'), [2]), ['a\n', '\n', 'b\r\n', 'c'])
})

test('a line that is too long is split between characters', () => {
  const text = `x${'é'.repeat(MAX_LINE_BYTES)}\n`
  const lines = cut(Buffer.from(text), [5_000])
  assert.equal(lines.join(''), text)
  assert.deepEqual(
    lines.map((line) => Buffer.byteLength(line)),
    [MAX_LINE_BYTES - 1, MAX_LINE_BYTES, 3],
  )
})

test('flush yields an unfinished line, except for an incomplete character', () => {
  const lines: string[] = []
  const cutter = makeLineSplitter((line) => lines.push(line) > 0)
  const euro = Buffer.from('€')
  cutter.write(Buffer.concat([Buffer.from('cost: '), euro.subarray(0, 2)]))
  cutter.flush()
  assert.equal(cutter.holdsText, false)
  cutter.write(Buffer.concat([euro.subarray(2), Buffer.from('5\n')]))
  assert.deepEqual(lines, ['cost: ', '€5\n'])
})

test('refused bytes are counted, including those held before', () => {
  let room = 1
  const cutter = makeLineSplitter(() => room-- > 0)
  assert.equal(cutter.write(Buffer.from('half')), 0)
  assert.equal(cutter.write(Buffer.from(' line\nanother\nand a half')), 'another\nand a half'.length)
  cutter.write(Buffer.from('end'))
  assert.equal(cutter.end(), 3)
})

function cut(data: Buffer, sizes: readonly number[]): readonly string[] {
  const lines: string[] = []
  const cutter = makeLineSplitter((line) => lines.push(line) > 0)
  let from = 0
  for (const size of sizes) {
    cutter.write(data.subarray(from, from + size))
    from += size
  }
  cutter.write(data.subarray(Math.min(from, data.length)))
  cutter.end()
  return lines
}

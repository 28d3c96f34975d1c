import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import { makeMessageSplitter } from '../../../src/lib/streams/message-splitter.ts'

const LIMIT_BYTES = 100_000

type Frame = { readonly first: number; readonly payload: Buffer; readonly mask: Buffer | null }

const FIN = 0x80
const [CONTINUATION, TEXT, BINARY, PING] = [0, 1, 2, 9]

function encode({ first, payload, mask }: Frame): Buffer {
  const flag = mask === null ? 0 : 0x80
  const { length } = payload
  const start = length < 126 ? [first, flag | length] : length < 65_536 ? [first, flag | 126] : [first, flag | 127]
  const head = Buffer.from([...start, ...Array.from({ length: length < 126 ? 0 : length < 65_536 ? 2 : 8 }, () => 0)])
  if (head.length === 4) head.writeUInt16BE(length, 2)
  if (head.length === 10) head.writeBigUInt64BE(BigInt(length), 2)
  if (mask === null) return Buffer.concat([head, payload])
  const masked = payload.map((byte, at) => byte ^ (mask[at % 4] ?? 0))
  return Buffer.concat([head, mask, masked])
}

/** Decodes frames by single bytes, as RFC 6455 describes them. The last frame may have only a head. */
function decode(bytes: Buffer): Frame[] {
  const frames: Frame[] = []
  for (let at = 0; at < bytes.length;) {
    const [first = 0, second = 0] = bytes.subarray(at)
    const short = second & 0x7f
    at += 2
    const length = short < 126 ? short : short === 126 ? bytes.readUInt16BE(at) : Number(bytes.readBigUInt64BE(at))
    at += short < 126 ? 0 : short === 126 ? 2 : 8
    const mask = (second & 0x80) === 0 ? null : Buffer.from(bytes.subarray(at, at + 4))
    at += mask === null ? 0 : 4
    const payload = Buffer.from(bytes.subarray(at, at + length).map((byte, index) => byte ^ (mask?.[index % 4] ?? 0)))
    at += length
    frames.push({ first, payload, mask })
  }
  return frames
}

/** What the splitter makes of a stream that arrives in pieces of these sizes. */
function split(bytes: Buffer, sizes: readonly number[]): Buffer {
  const splitter = makeMessageSplitter(LIMIT_BYTES)
  const out: Buffer[] = []
  for (let at = 0, turn = 0; at < bytes.length; turn++) {
    const size = sizes[turn % sizes.length] ?? 1
    // A copy at an odd address: the splitter changes it in place, by words.
    const chunk = Buffer.from(new ArrayBuffer(size + 3), turn % 4, Math.min(size, bytes.length - at))
    bytes.copy(chunk, 0, at)
    splitter.push(chunk, (part) => out.push(part))
    at += size
  }
  return Buffer.concat(out)
}

// Lengths in place of bytes, so that a failure can be read.
const lengths = fc.oneof(fc.integer({ min: 0, max: 300 }), fc.integer({ min: 60_000, max: 70_000 }))
const messages = fc.record({
  opcode: fc.constantFrom(BINARY, BINARY, TEXT),
  parts: fc.array(lengths, { minLength: 1, maxLength: 4 }),
  mask: fc.option(fc.uint8Array({ minLength: 4, maxLength: 4 })),
  hasPing: fc.boolean(),
})

test('a stream of messages keeps its bytes, its texts and its pings, in order, wherever it is cut', () => {
  fc.assert(
    fc.property(
      fc.array(messages, { maxLength: 6 }),
      fc.array(fc.integer({ min: 1, max: 65_536 }), { minLength: 1, maxLength: 8 }),
      (sent, sizes) => {
        const frames = sent
          .filter(({ parts }) => parts.reduce((sum, length) => sum + length, 0) <= LIMIT_BYTES)
          .flatMap(({ opcode, parts, mask, hasPing }) =>
            parts.flatMap((length, index): Frame[] => {
              const first = (index === 0 ? opcode : CONTINUATION) | (index === parts.length - 1 ? FIN : 0)
              const maskBytes = mask === null ? null : Buffer.from(mask)
              const payload = Buffer.from(Uint8Array.from({ length }, (_, at) => (at * 7) ^ (at >> 8)))
              const frame = { first, payload, mask: maskBytes }
              const ping = { first: FIN | PING, payload: Buffer.from('still there?'), mask: maskBytes }
              return hasPing ? [frame, ping] : [frame]
            }),
          )
        const got = decode(split(Buffer.concat(frames.map(encode)), sizes))
        assert.ok(isDeepStrictEqual(streamOf(got), streamOf(frames)))
        let isText = false
        for (const { first, mask } of got) {
          const opcode = first & 0x0f
          if (opcode === TEXT || opcode === CONTINUATION) isText = (first & FIN) === 0
          else if (opcode === BINARY) assert.deepEqual([first, isText], [FIN | BINARY, false])
          if (opcode === BINARY && mask !== null) assert.deepEqual([...mask], [0, 0, 0, 0])
        }
      },
    ),
    { numRuns: 200 },
  )
})

/** The bytes of binary messages without their frames, and every other frame as it is. */
function streamOf(frames: readonly Frame[]): readonly (string | Frame)[] {
  const stream: (string | Frame)[] = []
  let isBinary = false
  for (const frame of frames) {
    const opcode = frame.first & 0x0f
    if (opcode === TEXT || opcode === BINARY) isBinary = opcode === BINARY
    if (opcode === PING || !isBinary) {
      stream.push(frame)
      continue
    }
    const last = stream.at(-1)
    const bytes = frame.payload.toString('latin1')
    if (typeof last === 'string') stream[stream.length - 1] = last + bytes
    else stream.push(bytes)
  }
  return stream.filter((part) => part !== '')
}

test('a piece is passed on as soon as it arrives', () => {
  const splitter = makeMessageSplitter(LIMIT_BYTES)
  const frame = encode({ first: FIN | BINARY, payload: Buffer.alloc(1000, 'x'), mask: Buffer.from([1, 2, 3, 4]) })
  const out: Buffer[] = []
  splitter.push(frame.subarray(0, 500), (part) => out.push(part))
  const [piece] = decode(Buffer.concat(out))
  assert.equal(piece?.payload.toString(), 'x'.repeat(500 - 8))
})

const binary = (first: number, bytes: number): Buffer =>
  encode({ first, payload: Buffer.alloc(bytes), mask: Buffer.from([9, 8, 7, 6]) })

test('a message above the limit announces its length to the library, also if no frame of it is too large', () => {
  const one = split(binary(FIN | BINARY, LIMIT_BYTES + 1), [50])
  assert.equal(one.readBigUInt64BE(2), BigInt(LIMIT_BYTES + 1))
  const parts = Buffer.concat([binary(BINARY, LIMIT_BYTES), binary(CONTINUATION, 1)])
  const last = decode(split(parts, [parts.length])).at(-2)
  assert.equal(last?.payload.length, LIMIT_BYTES)
  const heads = split(parts, [parts.length])
  assert.equal(heads.readBigUInt64BE(heads.length - 13), BigInt(LIMIT_BYTES + 1))
})

test('frames that violate the protocol still do so after the split', () => {
  const opcodes = (...frames: Buffer[]): number[] => decode(split(Buffer.concat(frames), [7])).map(({ first }) => first)
  // A message that begins before the last one ends is a continuation of nothing.
  assert.deepEqual(opcodes(binary(BINARY, 1), binary(FIN | BINARY, 1)), [FIN | BINARY, FIN | CONTINUATION])
  assert.deepEqual(opcodes(binary(BINARY, 1), binary(FIN | TEXT, 1)), [FIN | BINARY, FIN | CONTINUATION])
  assert.deepEqual(opcodes(binary(TEXT, 1), binary(FIN | BINARY, 1)), [TEXT, FIN | BINARY])
  assert.deepEqual(opcodes(binary(FIN | CONTINUATION, 1)), [FIN | CONTINUATION])
  for (const first of [FIN | 3, FIN | 0x0b, FIN | 0x40 | BINARY]) assert.deepEqual(opcodes(binary(first, 1)), [first])
})

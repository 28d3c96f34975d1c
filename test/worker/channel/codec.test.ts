import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { CborError, asBytes, asMap, decodeCbor, encodeCbor } from '../../../src/channel/cbor.ts'
import {
  MAX_DATA_BYTES,
  decodeData,
  decodeEnvelope,
  encodeData,
  encodeMessage,
  fastDecodeData,
  fastDecodeEnvelope,
} from '../../../src/channel/envelope.ts'
import { readExecRequest, readResize, readSignal } from '../../../src/worker/channel/exec-payloads.ts'
import { FrameLengthError, makeFrameReader, MAX_FRAME_LENGTH } from '../../../src/channel/frame.ts'
import type { Frame } from '../../../src/channel/frame.ts'
import type { MessageType } from '../../../src/channel/messages.ts'

const hex = (text: string): Buffer => Buffer.from(text.replaceAll(/\s/g, ''), 'hex')

/** Frames that the public client 0.6.18 sent or accepted. */
const CAPTURED: readonly {
  readonly type: MessageType
  readonly id: number
  readonly payload: Record<string, unknown>
  readonly bytes: string
}[] = [
  {
    type: 'core.exec.request',
    id: 1,
    payload: {
      cmd: 'sh',
      args: ['-c', 'cat; exit 3'],
      env: ['A=1'],
      cwd: '/tmp',
      user: '0:0',
      tty: false,
      rows: 24,
      cols: 80,
      rlimits: [{ resource: 'nofile', soft: 64, hard: 128 }],
    },
    bytes: `000000940000000102a3617607617471636f72652e657865632e7265717565737461705873a963636d64627368646172677382622d636b6361743b206578697420
    3363656e768163413d3163637764642f746d70647573657263303a3063747479f464726f7773181864636f6c73185067726c696d69747381a3687265736f7572636566
    6e6f66696c6564736f6674184064686172641880`,
  },
  {
    type: 'core.exec.started',
    id: 1,
    payload: { pid: 6048 },
    bytes: '000000280000000100a3617607617471636f72652e657865632e73746172746564617048a1637069641917a0',
  },
  {
    type: 'core.exec.exited',
    id: 1,
    payload: { code: 3 },
    bytes: '000000260000000101a3617607617470636f72652e657865632e657869746564617047a164636f646503',
  },
  {
    type: 'core.exec.failed',
    id: 1,
    payload: {
      kind: 'not_found',
      errno: 2,
      errno_name: 'ENOENT',
      message: 'spawn "nosuch": ENOENT (os error 2)',
      stage: 'execvp',
    },
    bytes: `000000830000000101a3617607617470636f72652e657865632e6661696c656461705863a5646b696e64696e6f745f666f756e64656572726e6f026a6572726e6f5f6e61
    6d6566454e4f454e54676d6573736167657823737061776e20226e6f73756368223a20454e4f454e5420286f73206572726f7220322965737461676566657865637670`,
  },
  {
    type: 'core.exec.resize',
    id: 1,
    payload: { rows: 40, cols: 120 },
    bytes: '0000002e0000000100a3617607617470636f72652e657865632e726573697a6561704fa264726f7773182864636f6c731878',
  },
  {
    type: 'core.exec.signal',
    id: 1,
    payload: { signal: 15 },
    bytes: '000000280000000100a3617607617470636f72652e657865632e7369676e616c617049a1667369676e616c0f',
  },
  {
    type: 'core.exec.stdin.error',
    id: 1,
    payload: { errno: 32, errno_name: 'EPIPE', message: 'write EPIPE' },
    bytes: `000000530000000100a3617607617475636f72652e657865632e737464696e2e6572726f726170582ea3656572726e6f18206a6572726e6f5f6e616d65654550495045
    676d6573736167656b7772697465204550495045`,
  },
  {
    type: 'core.fs.response',
    id: 2,
    payload: { ok: true, error: null, data: null },
    bytes: '000000310000000201a3617607617470636f72652e66732e726573706f6e7365617052a3626f6bf5656572726f72f66464617461f6',
  },
  {
    type: 'core.tcp.connected',
    id: 1,
    payload: {},
    bytes: '000000220000000100a3617607617472636f72652e7463702e636f6e6e6563746564617041a0',
  },
]

for (const { type, id, payload, bytes } of CAPTURED) {
  test(`a ${type} is encoded to exactly the bytes that the real client sends or accepts`, () => {
    assert.equal(encodeMessage(id, type, payload).toString('hex'), hex(bytes).toString('hex'))
  })
  test(`a captured ${type} is decoded to its fields`, () => {
    const [frame] = framesOf([hex(bytes)])
    assert.ok(frame)
    assert.equal(frame.id, id)
    const envelope = decodeEnvelope(frame.body)
    assert.equal(envelope.type, type)
    assert.deepEqual(decodeCbor(envelope.payload), payload)
  })
}

test('output data is framed as the real client accepts it, without copying the data', () => {
  const data = Buffer.from('hi\n')
  const [head, body] = encodeData(1, 'core.exec.stdout', data)
  const expected = '000000290000000100a3617607617470636f72652e657865632e7374646f757461704aa164646174614368690a'
  assert.equal(Buffer.concat([head, body]).toString('hex'), expected)
  assert.equal(body, data)
})

test('data of any size up to the limit survives frame, envelope and payload', () => {
  for (const size of [0, 1, 23, 24, 255, 256, 65_535, 65_536, MAX_DATA_BYTES]) {
    const data = Buffer.alloc(size, 7)
    const [frame] = framesOf([Buffer.concat(encodeData(9, 'core.exec.stdout', data))])
    assert.ok(frame)
    assert.deepEqual(decodeData(decodeEnvelope(frame.body).payload), data)
  }
  assert.throws(() => encodeData(9, 'core.exec.stdout', Buffer.alloc(MAX_DATA_BYTES + 1)), CborError)
})

test('frames are the same however the bytes are split', () => {
  fc.assert(
    fc.property(
      fc.array(fc.record({ id: fc.nat(), data: fc.uint8Array({ maxLength: 300 }) }), { maxLength: 8 }),
      fc.array(fc.integer({ min: 1, max: 50 }), { minLength: 1, maxLength: 40 }),
      (messages, cuts) => {
        const all = Buffer.concat(
          messages.flatMap(({ id, data }) => encodeData(id, 'core.exec.stdout', Buffer.from(data))),
        )
        const pieces: Buffer[] = []
        for (let at = 0, turn = 0; at < all.length; turn++) {
          const size = cuts[turn % cuts.length] ?? 1
          pieces.push(all.subarray(at, at + size))
          at += size
        }
        const frames = framesOf(pieces)
        assert.deepEqual(
          frames.map((frame) => [frame.id, [...decodeData(decodeEnvelope(frame.body).payload)]]),
          messages.map(({ id, data }) => [id, [...data]]),
        )
      },
    ),
    { numRuns: 200 },
  )
})

test('a frame of exactly 4 MiB is accepted and one byte more is refused', () => {
  const length = Buffer.alloc(4)
  length.writeUInt32BE(MAX_FRAME_LENGTH)
  assert.equal(framesOf([length, Buffer.alloc(MAX_FRAME_LENGTH)]).length, 1)
  length.writeUInt32BE(MAX_FRAME_LENGTH + 1)
  assert.throws(() => framesOf([length]), FrameLengthError)
  length.writeUInt32BE(4)
  assert.throws(() => framesOf([length]), FrameLengthError)
})

test('random bytes never make the decoders throw anything but their own errors', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 400 }), (bytes) => {
      for (const read of [decodeCbor, decodeEnvelope, readExecRequest, decodeData, readResize, readSignal]) {
        try {
          read(bytes)
        } catch (error) {
          assert.ok(error instanceof CborError, String(error))
        }
      }
    }),
    { numRuns: 2000 },
  )
})

test('a message nested as deep as a frame is long is refused without a crash', () => {
  assert.throws(() => decodeCbor(Buffer.alloc(MAX_FRAME_LENGTH, 0x81)), CborError)
  assert.throws(() => decodeCbor(Buffer.alloc(60_000, 0x81)), CborError)
})

test('a frame full of tiny items is refused before they are all built', () => {
  const bomb = Buffer.alloc(4 * 1024 * 1024, 0x00)
  bomb.writeUInt8(0x9f, 0)
  assert.throws(() => decodeCbor(bomb), { cause: new CborError('more than 65536 items') })
})

test('a map with very many keys is refused, and a long list of arguments is not', () => {
  const keys = Object.fromEntries(Array.from({ length: 20_000 }, (_, n) => [String(n * 1_000_003), 1]))
  const encoded = Buffer.from(encodeCbor(keys))
  assert.equal(encoded[0], 0xb9) // a map with a length of two bytes
  const indefinite = Buffer.concat([Buffer.of(0xbf), encoded.subarray(3), Buffer.of(0xff)])
  for (const map of [encoded, indefinite])
    assert.throws(() => decodeCbor(map), { cause: new CborError('more than 65536 items') })
  const args = Array.from({ length: 16_000 }, () => 'x')
  assert.deepEqual(decodeCbor(encodeCbor({ args })), { args })
})

test('whole numbers are encoded as integers and fractions are refused', () => {
  assert.equal(Buffer.from(encodeCbor({ code: -1 })).toString('hex'), 'a164636f646520')
  assert.equal(Buffer.from(encodeCbor([2 ** 40])).toString('hex'), '811b0000010000000000')
  assert.throws(() => encodeCbor({ code: 0.5 }), CborError)
})

test('other encodings are accepted: any key order, indefinite lengths, wide integers, tagged or listed bytes', () => {
  // {_ "cols": 120 (as u64), "extra": [1.5], "rows": 40 }
  assert.deepEqual(readResize(hex('bf 64636f6c73 1b0000000000000078 656578747261 81f93e00 64726f7773 1828 ff')), {
    rows: 40,
    cols: 120,
  })
  for (const data of ['43686921', 'd84043686921', '83186818691821']) {
    assert.equal(decodeData(hex(`a1 6464617461 ${data}`)).toString(), 'hi!')
  }
  const envelope = decodeEnvelope(hex('a4 6178 f6 6170 41a0 6174 6161 6176 09'))
  assert.equal(envelope.type, 'a')
})

test('the fast path decodes the same as the general decoder, and leaves all other forms to it', () => {
  const [whole] = framesOf([encodeMessage(1, 'core.fs.data', { data: Buffer.from('some data') })])
  assert.ok(whole)
  assert.ok(fastDecodeEnvelope(whole.body) !== null)
  const mangled = fc.tuple(fc.nat(whole.body.length - 1), fc.nat(255), fc.nat(3), fc.boolean())
  fc.assert(
    fc.property(mangled, ([at, byte, cut, isChanged]) => {
      const body = Buffer.concat([whole.body.subarray(0, whole.body.length - cut), Buffer.alloc(isChanged ? 0 : cut)])
      if (isChanged && at < body.length) body.writeUInt8(byte, at)
      const fast = fastDecodeEnvelope(body)
      if (fast === null) return
      const { t: type, p: payload } = asMap(decodeCbor(body))
      assert.deepEqual([fast.type, [...fast.payload]], [type, [...asBytes(payload)]])
      const data = fastDecodeData(fast.payload)
      if (data !== null) assert.deepEqual([...data], [...asBytes(asMap(decodeCbor(fast.payload))['data'])])
    }),
    { numRuns: 2000 },
  )
})

test('absent options mean their defaults, and environment items without an equals sign are dropped', () => {
  const request = readExecRequest(encodeCbor({ cmd: 'x', tty: true, env: ['A=1', 'B', '=C'] }))
  assert.deepEqual(request, {
    cmd: 'x',
    args: [],
    env: ['A=1'],
    cwd: null,
    user: null,
    tty: { rows: 24, cols: 80 },
    rlimits: [],
  })
})

function framesOf(pieces: readonly Buffer[]): readonly Frame[] {
  const reader = makeFrameReader()
  return pieces.flatMap((piece) => [...reader.push(piece)])
}

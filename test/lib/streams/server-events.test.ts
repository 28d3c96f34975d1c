import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseServerEvents } from '../../../src/lib/streams/server-events.ts'

test('events arrive whole however the stream is cut, comments and a cut off event are left out', async () => {
  const text =
    ': alive\n\nid: 1\nevent: log\ndata: {"a":"é"}\n\ndata: x\ndata: y\n\nevent: end\ndata: {}\n\nid: 2\ndata: cut'
  const expected = [
    { id: '1', type: 'log', data: '{"a":"é"}' },
    { id: null, type: 'message', data: 'x\ny' },
    { id: null, type: 'end', data: '{}' },
  ]
  const bytes = Buffer.from(text)
  for (const size of [1, 7, bytes.length]) {
    const chunks = Array.from({ length: Math.ceil(bytes.length / size) }, (_, index) => bytes.subarray(index * size, (index + 1) * size)) // prettier-ignore
    assert.deepEqual(await Array.fromAsync(parseServerEvents(ReadableStream.from(chunks))), expected)
  }
})

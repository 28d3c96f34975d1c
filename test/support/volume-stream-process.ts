// test/worker/volumes/serve-volume.test.ts starts this process with a small heap. It writes a file to a volume over a
// stream, reads it back, and prints the maximum memory of its buffers.
import { createHash } from 'node:crypto'
import { duplexPair, Readable } from 'node:stream'
import { makeVolumeClient } from '../../src/control/volumes/volume-client.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { makeVolumeFiles } from '../../src/worker/volumes/volume-files.ts'
import { serveVolume } from '../../src/worker/volumes/serve-volume.ts'

const [root = '', size = '0'] = process.argv.slice(2)
const files = makeVolumeFiles({ root, uidShift: process.getuid?.() ?? 0, random: systemRandom })
const client = makeVolumeClient(() => {
  const [near, far] = duplexPair()
  void serveVolume(far, files, { log: makeLog('error'), onChanged: () => undefined })
  return Promise.resolve(near)
})

const sent = createHash('sha256')
const received = createHash('sha256')
let most = 0

function measure(): void {
  most = Math.max(most, process.memoryUsage().external)
}

function* chunks(): Generator<Buffer> {
  for (let left = Number(size); left > 0; left -= 64 * 1024) {
    const chunk = systemRandom.bytes(Math.min(left, 64 * 1024))
    sent.update(chunk)
    measure()
    yield chunk
  }
}

const startedMs = performance.now()
await client.write('/large', Readable.from(chunks(), { objectMode: false }))
const writtenMs = performance.now()
const { content } = await client.read('/large')
const pieces: AsyncIterable<Buffer> = content
for await (const piece of pieces) {
  received.update(piece)
  measure()
}
process.stdout.write(
  JSON.stringify({
    mostMib: Math.ceil(most / 1024 / 1024),
    isSame: sent.digest('hex') === received.digest('hex'),
    writeMs: Math.round(writtenMs - startedMs),
    readMs: Math.round(performance.now() - writtenMs),
  }),
)

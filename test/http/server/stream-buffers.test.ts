import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { endWithText } from '../../../src/http/server/stream-buffers.ts'

/** Serves a text, and notes the bytes of each write of the last reply. */
async function serveText(t: TestContext, text: string) {
  const writes: number[] = []
  const server = createServer((_, response) => {
    writes.length = 0
    const write = response.write.bind(response)
    response.write = (chunk: Buffer): boolean => {
      writes.push(chunk.length)
      return write(chunk)
    }
    endWithText(response, text)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const { port } = server.address() as AddressInfo // it listens on TCP
  return { url: `http://127.0.0.1:${String(port)}`, writes }
}

test('a large text arrives whole, and no write has more than 64 KiB of it', async (t) => {
  const text = 'ä'.repeat(300_000)
  const { url, writes } = await serveText(t, text)
  assert.equal(await (await fetch(url)).text(), text)
  assert.equal(writes.reduce((sum, bytes) => sum + bytes, 0), 600_000) // prettier-ignore
  assert.ok(
    writes.every((bytes) => bytes <= 64 * 1024),
    writes.join(' '),
  )
})

test('a small text is sent at once', async (t) => {
  const { url, writes } = await serveText(t, '{}')
  assert.equal(await (await fetch(url)).text(), '{}')
  assert.deepEqual(writes, [])
})

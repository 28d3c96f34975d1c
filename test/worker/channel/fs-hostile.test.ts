import assert from 'node:assert/strict'
import { PassThrough } from 'node:stream'
import { test } from 'node:test'
import fc from 'fast-check'
import { makeFilesClient } from '../../../src/worker/channel/files-client.ts'
import { FileFailure } from '../../../src/worker/channel/guest-files.ts'
import type { GuestFiles } from '../../../src/worker/channel/guest-files.ts'
import type { GuestProcess } from '../../../src/worker/channel/guest.ts'

// The helper process that serves files runs in the sandbox, so the sandbox's owner may replace it by a hostile one.

/** A helper process whose replies the test writes. It ends when it is killed. */
function makeLiar(): { readonly process: GuestProcess; readonly says: PassThrough } {
  const { promise: exited, resolve } = Promise.withResolvers<number>()
  const says = new PassThrough()
  const stdin = new PassThrough()
  stdin.resume()
  const process: GuestProcess = {
    pid: 2,
    stdin,
    stdout: says,
    stderr: null,
    exited,
    resize: () => assert.fail('nobody asked'),
    signal: () => {
      resolve(-1)
    },
  }
  return { process, says }
}

/** A reply in the helper's format. */
function reply(id: number, status: number, body: Buffer): Buffer {
  const head = Buffer.alloc(9)
  head.writeUInt32BE(5 + body.length, 0)
  head.writeUInt32BE(id, 4)
  head.writeUInt8(status, 8)
  return Buffer.concat([head, body])
}

/** One request for each kind of reply. */
const QUESTIONS: readonly ((files: GuestFiles) => Promise<unknown>)[] = [
  (files) => files.stat('/', { follow: true }),
  (files) => files.realPath('/'),
  (files) => files.readFolder(1, 512),
  (files) => files.read(1, 0, 1000),
  (files) => files.remove('/x'),
  (files) => files.copy(1, '/x', '/y'),
]

/** Resolves with how a request ended: with a reply, or with a `FileFailure`. Rejects for any other error. */
async function ending(question: Promise<unknown>): Promise<'answered' | 'refused'> {
  try {
    await question
    return 'answered'
  } catch (error) {
    assert.ok(error instanceof FileFailure, String(error))
    assert.ok(error.message.length < 5000)
    return 'refused'
  }
}

test('whatever the helper sends, every request ends with a reply or a FileFailure', async () => {
  const body = fc.uint8Array({ maxLength: 200 }).map((bytes) => Buffer.from(bytes))
  const honest = fc.tuple(fc.integer({ min: 0, max: 7 }), fc.integer({ min: 0, max: 2 }), body)
  const said = fc.array(
    fc.oneof(
      honest.map(([id, status, bytes]) => reply(id, status, bytes)),
      body,
    ),
    { maxLength: 8 },
  )
  await fc.assert(
    fc.asyncProperty(said, fc.integer({ min: 1, max: 64 }), async (pieces, cut) => {
      const { process, says } = makeLiar()
      const files = makeFilesClient(process)
      const endings = QUESTIONS.map((ask) => ending(ask(files)))
      const bytes = Buffer.concat(pieces)
      for (let at = 0; at < bytes.length; at += cut) says.write(bytes.subarray(at, at + cut))
      says.end()
      await Promise.all(endings)
      await files.close()
      assert.equal(files.hasEnded, true)
      assert.equal(await ending(files.stat('/', { follow: true })), 'refused')
    }),
    { numRuns: 300 },
  )
})

test('an unexpected reply, or one that is longer than the request allows, ends the helper before the reply is stored', async () => {
  for (const head of [
    reply(0, 0, Buffer.alloc(37)),
    reply(0, 1, Buffer.alloc(5000)),
    reply(1, 0, Buffer.alloc(36)),
    Buffer.from('ffffffff0000000000', 'hex'),
    Buffer.from('000000000000000000', 'hex'),
  ]) {
    const { process, says } = makeLiar()
    const files = makeFilesClient(process)
    const question = files.stat('/', { follow: true })
    says.write(head.subarray(0, 9))
    await assert.rejects(question, /broke its protocol/)
    assert.equal(await process.exited, -1)
  }
})

test('numbers beyond a file’s range become the nearest possible ones', async () => {
  const { process, says } = makeLiar()
  const files = makeFilesClient(process)
  const question = files.stat('/', { follow: true })
  says.write(reply(0, 0, Buffer.alloc(36, 0xff)))
  assert.deepEqual(await question, { mode: 2 ** 32 - 1, uid: 2 ** 32 - 1, gid: 2 ** 32 - 1, size: 0, atime: -1, mtime: -1 }) // prettier-ignore
  const next = files.stat('/', { follow: true })
  says.write(reply(1, 0, Buffer.alloc(36, 0x7f)))
  assert.equal((await next).mtime, Number.MAX_SAFE_INTEGER)
  await files.close()
})

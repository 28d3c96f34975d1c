import assert from 'node:assert/strict'
import { once } from 'node:events'
import { request, type ClientRequest } from 'node:http'
import { connect } from 'node:net'
import { Readable } from 'node:stream'
import { test, type TestContext } from 'node:test'
import { Problem } from '../../../src/domain/problem.ts'
import { DEFAULT_SERVER_SETTINGS } from '../../../src/http/server/server.ts'
import { asCaller, makeHttpWorld, SANDBOX_ID, type WorldOptions } from '../../support/http-world.ts'
import { waitUntil, waitUntilUnchanged } from '../../support/wait.ts'

const CONTENT = `/v1/volumes/${SANDBOX_ID}/files/content`
const headers = { ...asCaller, 'x-msb-file-path': 'YQ' }
const MIB = 1024 * 1024

async function listen(t: TestContext, options: WorldOptions): Promise<{ readonly url: string; readonly port: number }> {
  const app = makeHttpWorld(options)
  t.after(() => app.close())
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  return { url, port: Number(new URL(url).port) }
}

test('a body of any type and length reaches the use case as the bytes that they are', async (t) => {
  const got: string[] = []
  const { url } = await listen(t, {
    useCases: {
      writeVolumeFile: async (_caller, { content, path }) => {
        got.push(`${path}=${await textOf(content)}`)
      },
    },
  })
  const types = ['application/json', 'text/plain; charset=latin1', 'application/x-none', null]
  for (const type of types) {
    const more = type === null ? {} : { 'content-type': type }
    const reply = await fetch(url + CONTENT, {
      method: 'PUT',
      headers: { ...headers, ...more },
      body: Buffer.from('{x'),
    })
    assert.equal(reply.status, 200, await reply.text())
  }
  const empty = await fetch(url + CONTENT, { method: 'PUT', headers })
  assert.equal(empty.status, 200)
  assert.deepEqual(got, [...types.map(() => 'a={x'), 'a='])
})

test('a path that is not base64url of UTF-8 without padding is refused before the use case is called', async (t) => {
  const { url } = await listen(t, {
    useCases: { readVolumeFile: () => Promise.reject(new Error('it must not be asked')) },
  })
  for (const path of ['YQ==', 'a+/b', '_w', 'Y', 'YQ YQ']) {
    const reply = await fetch(url + CONTENT, { headers: { ...headers, 'x-msb-file-path': path } })
    const body: unknown = await reply.json()
    assert.equal(reply.status, 400, path)
    assert.equal(Object(body).error.code, 'invalid_volume_path')
  }
})

test('a file is sent with its length, and a client that disconnects destroys the stream', async (t) => {
  const endless = new Readable({
    read() {
      this.push(Buffer.alloc(64 * 1024))
    },
  })
  const { url } = await listen(t, {
    useCases: {
      readVolumeFile: (_caller, { path }) =>
        Promise.resolve(
          path === 'a'
            ? { sizeBytes: 3, content: Readable.from([Buffer.from('abc')]) }
            : { sizeBytes: 1e12, content: endless },
        ),
    },
  })
  const reply = await fetch(url + CONTENT, { headers })
  assert.deepEqual([reply.headers.get('content-length'), await reply.text()], ['3', 'abc'])
  assert.equal(reply.headers.get('content-type'), 'application/octet-stream')
  const leaving = new AbortController()
  const long = await fetch(url + CONTENT, { headers: { ...headers, 'x-msb-file-path': 'Yg' }, signal: leaving.signal })
  assert.equal(long.status, 200)
  leaving.abort()
  await waitUntil(() => endless.destroyed)
})

test('a client that disconnects in the middle of an upload ends it with an error, so that no part is taken for the whole', async (t) => {
  const begun = Promise.withResolvers<undefined>()
  const broken = Promise.withResolvers<unknown>()
  const { port } = await listen(t, {
    useCases: {
      writeVolumeFile: async (_caller, { content }) => {
        try {
          begun.resolve(undefined)
          await textOf(content)
          broken.resolve('whole')
        } catch (error) {
          broken.resolve(error)
          throw error
        }
      },
    },
  })
  const socket = connect(port, '127.0.0.1')
  socket.write(
    `PUT ${CONTENT} HTTP/1.1\r\nhost: x\r\nauthorization: ${asCaller.authorization}\r\nx-msb-file-path: YQ\r\n` +
      'transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n',
  )
  await begun.promise
  socket.destroy()
  assert.ok((await broken.promise) instanceof Error)
})

test('a large body that nobody reads yet waits without filling memory', async (t) => {
  const PARTS = 100
  const { promise: taking, resolve: take } = Promise.withResolvers<void>()
  let received = 0
  const { port } = await listen(t, {
    useCases: {
      writeVolumeFile: async (_caller, { content }) => {
        await taking
        const pieces: AsyncIterable<Buffer> = content
        for await (const piece of pieces) received += piece.length
      },
    },
  })
  const upload = request({ port, path: CONTENT, method: 'PUT', headers })
  const part = Buffer.alloc(MIB)
  let sent = 0
  const fill = (): void => {
    let hasRoom = true
    for (; hasRoom && sent < PARTS; sent++) hasRoom = upload.write(part)
    if (sent === PARTS) upload.end()
  }
  upload.on('drain', fill)
  fill()
  await waitUntilUnchanged(() => sent)
  assert.ok(sent < PARTS / 2, `${String(sent)} MiB were taken while nobody read`)
  take()
  const [reply] = await once(upload, 'response')
  assert.deepEqual([reply.statusCode, received], [200, PARTS * MIB])
  reply.resume()
})

test('an upload that moves may take longer than the request timeout; a JSON body may not', async (t) => {
  const settings = { ...DEFAULT_SERVER_SETTINGS, requestTimeoutMs: 400 }
  const begun = Promise.withResolvers<void>()
  const useCases: WorldOptions['useCases'] = {
    writeVolumeFile: async (_caller, { content }) => {
      begun.resolve()
      await textOf(content)
    },
  }
  const { port } = await listen(t, { server: { settings }, useCases })
  const begin = (method: string, path: string): { readonly upload: ClientRequest; status(): number | null } => {
    let status: number | null = null
    const upload = request({ port, path, method, headers: { ...headers, 'content-type': 'application/json' } })
    upload.once('response', (response) => {
      response.resume()
      status = response.statusCode ?? 0
    })
    upload.on('error', () => {
      status ??= 0
    })
    upload.write('{')
    return { upload, status: () => status }
  }
  const file = begin('PUT', CONTENT)
  await begun.promise
  const json = begin('POST', '/v1/sandboxes')
  // The file began first. When the JSON body has exceeded the timeout, the file has exceeded it too.
  await waitUntil(() => {
    for (const { upload } of [file, json]) if (!upload.destroyed) upload.write(' ')
    return json.status() !== null
  })
  file.upload.end('}')
  await waitUntil(() => file.status() !== null)
  assert.equal(file.status(), 200)
  assert.notEqual(json.status(), 200)
})

test('a refusal that comes before the end of the body reaches the client', async (t) => {
  const { port } = await listen(t, {
    useCases: { writeVolumeFile: () => Promise.reject(new Problem('quota_exceeded')) },
  })
  const upload = request({ port, path: CONTENT, method: 'PUT', headers })
  upload.on('error', () => upload.destroy()) // the connection ends some seconds after the refusal
  upload.write(Buffer.alloc(MIB))
  const [reply] = await once(upload, 'response')
  assert.equal(reply.statusCode, 403)
  reply.resume()
  upload.destroy()
})

async function textOf(content: Readable): Promise<string> {
  const parts: Buffer[] = []
  const pieces: AsyncIterable<Buffer> = content
  for await (const piece of pieces) parts.push(piece)
  return Buffer.concat(parts).toString('utf8')
}

import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import type { IncomingMessage } from 'node:http'
import { request } from 'node:https'
import { buffer } from 'node:stream/consumers'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { mustCall } from '../support/api.ts'
import { runMsb } from '../support/msb.ts'
import { startProxy, whyNoProxy, type ProxyName, type TestProxy } from '../support/proxies.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// The example configurations of docs/proxies/, each run by the real proxy in front of a real server with sandboxes.

const MIB = 1024 * 1024
const LIMIT_MS = 30_000
const GUESSES = 3

type Sent = {
  readonly path: string
  readonly method?: string
  readonly headers?: Readonly<Record<string, string>>
  /** Without `end`, the request stays open after this part of its body. */
  readonly body?: Buffer
  readonly end?: boolean
  readonly from?: string
}

describe('proxies', { skip: whyNoServer() }, () => {
  let server: RealServer
  let folder: string
  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'sandyard-proxies-'))
    server = await startServer({
      SANDYARD_TRUSTED_PROXIES: '127.0.0.1',
      SANDYARD_REFUSED_KEYS_PER_SEC: '1',
      SANDYARD_REFUSED_KEY_BURST: String(GUESSES),
    })
  })
  after(async () => {
    await server.close()
    rmSync(folder, { recursive: true })
  })

  for (const name of ['nginx', 'caddy'] as const satisfies readonly ProxyName[])
    describe(name, { skip: whyNoProxy(name) }, () => {
      let proxy: TestProxy
      before(async () => {
        proxy = await startProxy(name, new URL(server.url), join(folder, name))
      })
      after(() => proxy[Symbol.asyncDispose]())

      /** Sends a request through the proxy. The body of the answer has not been read. */
      function send({ path, method = 'GET', headers = {}, body, end = true, from }: Sent): Promise<IncomingMessage> {
        const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
        const sent = request({
          host: '127.0.0.1',
          port: proxy.port,
          servername: 'localhost',
          ca: readFileSync(proxy.certificate.caFile),
          path,
          method,
          agent: false,
          headers: { host: `localhost:${String(proxy.port)}`, authorization: `Bearer ${server.key}`, ...headers },
          ...(from === undefined ? {} : { localAddress: from }),
        })
        sent.on('response', resolve).on('error', reject)
        if (body === undefined) sent.end()
        else if (end) sent.end(body)
        else sent.write(body)
        return promise
      }

      test('the unmodified command line client runs commands in a sandbox through it', async () => {
        const through = {
          clientEnv: { ...server.clientEnv, MSB_API_URL: proxy.url, SSL_CERT_FILE: proxy.certificate.caFile },
        }
        const run = await runMsb(through, ['run', '-d', '--name', name, DEMO_IMAGE, '--', 'sleep', '600'])
        assert.equal(run.code, 0, run.stderr)
        const counted = await runMsb(through, ['exec', name, '--', 'seq', '1', '200000'])
        const lines = Array.from({ length: 200_000 }, (_, n) => `${String(n + 1)}\n`)
        assert.deepEqual([counted.code, counted.stdout === lines.join('')], [0, true], counted.stderr)
      })

      test('a followed log arrives line by line while the sandbox runs', async () => {
        const script = 'echo one; while [ ! -e /go ]; do sleep 0.1; done; echo two; exec sleep 600'
        const sandbox = `${name}-talks`
        const run = await runMsb(server, ['run', '-d', '--name', sandbox, DEMO_IMAGE, '--', 'sh', '-c', script])
        assert.equal(run.code, 0, run.stderr)
        const { id } = await mustCall(server, 'get_sandbox_by_name', { params: { name: sandbox } })
        const log = await send({ path: `/v1/sandboxes/${id}/logs`, headers: { accept: 'text/event-stream' } })
        let text = ''
        log.setEncoding('utf8').on('data', (piece: string) => {
          text += piece
        })
        await waitUntil(() => text.includes('one'), LIMIT_MS)
        assert.equal(text.includes('two'), false)
        assert.equal((await runMsb(server, ['exec', sandbox, '--', 'touch', '/go'])).code, 0)
        await waitUntil(() => text.includes('two'), LIMIT_MS)
        log.destroy()
      })

      test('an upload reaches the server while it is still being sent, and a large file arrives whole', async () => {
        const volume = await mustCall(server, 'create_volume', { body: { name: `${name}-files` } })
        const path = `/v1/volumes/${volume.id}/files/content`
        const headers = { 'x-msb-file-path': Buffer.from('big').toString('base64url') }
        // Only a server that has the head of the request can refuse it. A buffering proxy would wait for the rest.
        const refused = await send({
          path,
          method: 'PUT',
          headers: { ...headers, authorization: 'Bearer wrong', 'content-length': String(64 * MIB) },
          body: Buffer.alloc(1024),
          end: false,
          from: '127.0.0.7',
        })
        assert.equal(refused.statusCode, 401)
        refused.destroy()
        const content = randomBytes(24 * MIB)
        const put = await send({ path, method: 'PUT', headers, body: content })
        assert.equal(put.statusCode, 200, (await buffer(put)).toString())
        const got = await send({ path, headers })
        const digest = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex')
        assert.equal(digest(await buffer(got)), digest(content))
      })

      test('the address of the client behind it counts, whatever the client writes into X-Forwarded-For', async () => {
        const guess = async (from: string, forged: string): Promise<number> => {
          const headers = { authorization: 'Bearer guess', 'x-forwarded-for': forged }
          const reply = await send({ path: '/v1/sandboxes', headers, from })
          reply.resume()
          await once(reply, 'end')
          return reply.statusCode ?? 0
        }
        const guesser = name === 'nginx' ? '127.0.0.21' : '127.0.0.22'
        let forged = 0
        await waitUntil(async () => (await guess(guesser, `192.0.2.${String((forged += 1) % 200)}`)) === 429, LIMIT_MS)
        assert.ok(forged > GUESSES)
        assert.equal(await guess(name === 'nginx' ? '127.0.0.31' : '127.0.0.32', guesser), 401)
      })
    })
})

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { connect as connectTcp } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test, type TestContext } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { connect as connectTls } from 'node:tls'
import { makeCertificate } from '../../../support/certificates.ts'
import { openInterceptor, openUpstream, testSecret } from '../../../support/intercept.ts'

const folder = mkdtempSync(join(tmpdir(), 'http2-fields-'))
after(() => {
  rmSync(folder, { recursive: true })
})
const certificate = await makeCertificate(folder, ['api.test'])

type Fields = readonly (readonly [name: string, value: string])[]

const PREFACE = 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'
const [DATA, HEADERS, RESET, SETTINGS] = [0, 1, 3, 4]
const [END_STREAM, END_HEADERS] = [1, 4]

/** Frames are made by hand, because Node doesn't send such fields. */
function frame(type: number, flags: number, { stream = 1, payload = '' } = {}): Buffer {
  const head = Buffer.alloc(9)
  head.writeUIntBE(payload.length, 0, 3)
  head.writeUInt8(type, 3)
  head.writeUInt8(flags, 4)
  head.writeUInt32BE(stream, 5)
  return Buffer.concat([head, Buffer.from(payload, 'latin1')])
}

function fields(list: Fields, flags = 0, stream = 1): Buffer {
  const texts = list.flat().map((text) => String.fromCharCode(text.length) + text)
  const payload = list.map((_, nth) => `\0${texts.slice(2 * nth, 2 * nth + 2).join('')}`).join('')
  return frame(HEADERS, END_HEADERS | flags, { payload, stream })
}

const body = frame(DATA, 0, { payload: 'the body' })
const settings = frame(SETTINGS, 0, { stream: 0 })
const post = fields([[':method', 'POST'], [':scheme', 'https'], [':authority', 'api.test'], [':path', '/']]) // prettier-ignore

type Sent = { readonly request?: readonly Buffer[]; readonly response?: readonly Buffer[] }

/** Sends frames of a client after the begin of a request, then those of its server. Resolves when the client's stream was reset. */
async function waitForReset(t: TestContext, { request = [], response = [] }: Sent): Promise<void> {
  const upstream = await openUpstream(t, certificate, (socket) => {
    socket.write(settings)
    socket.on('data', (bytes: Buffer) => {
      if (bytes.includes('the body')) for (const one of response) socket.write(one)
    })
  })
  const secrets = [testSecret()]
  const { port, ca } = await openInterceptor(t, { upstreamPort: upstream.port, caFile: certificate.caFile, secrets })
  const client = connectTls({ port, host: '127.0.0.1', servername: 'api.test', ca })
  t.after(() => client.destroy())
  await once(client, 'secureConnect')
  client.write(Buffer.concat([Buffer.from(PREFACE), settings, post, body, ...request]))
  let received: Buffer = Buffer.alloc(0)
  for await (const bytes of client as AsyncIterable<Buffer>) {
    received = Buffer.concat([received, bytes])
    if (hasReset(received)) return
  }
  assert.fail('the connection ended')
}

function hasReset(frames: Buffer): boolean {
  for (let at = 0; at + 9 <= frames.length; at += 9 + frames.readUIntBE(at, 3))
    if (frames[at + 3] === RESET) return true
  return false
}

test('the heads of a read are judged in a turn of the event loop each', async (t) => {
  let turn = 0
  const turns: number[] = []
  const upstream = await openUpstream(t, certificate, (socket) => socket.destroy())
  const options = { upstreamPort: upstream.port, caFile: certificate.caFile, secrets: [], isPlain: true }
  const { port } = await openInterceptor(t, { ...options, allowsHost: () => turns.push(turn) > 0 })
  // Each host is judged anew, because the one before was another.
  const heads = Array.from({ length: 40 }, (_, n) => {
    const host = `${String(n % 2)}.test`
    return fields([[':method', 'GET'], [':scheme', 'http'], [':authority', host], [':path', '/']], END_STREAM, 2 * n + 1) // prettier-ignore
  })
  const client = connectTcp(port, '127.0.0.1')
  t.after(() => client.destroy())
  client.on('error', () => client.destroy())
  client.write(Buffer.concat([Buffer.from(PREFACE), settings, ...heads]))
  while (turns.length < heads.length) {
    await setImmediate()
    turn += 1
  }
  assert.ok(new Set(turns).size > heads.length / 2, String(turns))
})

// An exception in the listener of an event would end the egress process, and it fails a test.
const refused: Readonly<Record<string, Fields>> = {
  'a field of HTTP/1 connections': [[':status', '200'], ['http2-settings', 'x']], // prettier-ignore
  'a status that is none': [[':status', '999']],
  'two fields of which there may be one': [[':status', '200'], ['content-type', 'a'], ['content-type', 'b']], // prettier-ignore
  'an informational response that Node doesn’t send': [[':status', '103'], ['http2-settings', 'x']], // prettier-ignore
}
for (const [what, list] of Object.entries(refused))
  test(`a response with ${what} ends its stream alone`, (t) => waitForReset(t, { response: [fields(list)] }))

test('trailers that Node doesn’t send end their stream alone, of a response and of a request', async (t) => {
  const trailers = fields([['http2-settings', 'x']], END_STREAM)
  await waitForReset(t, { response: [fields([[':status', '200']]), trailers] })
  await waitForReset(t, { request: [trailers] })
})

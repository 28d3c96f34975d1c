import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { test } from 'node:test'
import type { ImageStore } from '../../src/worker/images/image-store.ts'
import { StartError } from '../../src/worker/start-error.ts'
import { outboundHttp } from '../support/outbound-http.ts'
import { startRegistry } from '../support/registry.ts'
import { attack } from '../support/security-attack.ts'
import { makeTestImage } from '../support/test-image.ts'
import { makeFolder, NEEDS_ROOT, openStore, wanted } from '../worker/images/setup.ts'

const ATTACKER = "a tenant's key"
const skip = NEEDS_ROOT === false ? null : NEEDS_ROOT
const ONE_TEXT = /could not be reached: its address is not allowed, or nothing answers there/

/** Names of the attacker's DNS zone, and a name inside that the attacker guesses. */
const NAMES = {
  'loopback.example': ['127.0.0.1'],
  'private.example': ['10.0.0.7'],
  'metadata.example': ['169.254.169.254'],
  'mapped.example': ['::ffff:127.0.0.1'],
  'nat64.example': ['64:ff9b::7f00:1'],
  'six-to-four.example': ['2002:7f00:1::1'],
  'unspecified.example': ['0.0.0.0', '::'],
  'unique-local.example': ['fd00::7'],
  'shared.example': ['100.64.0.7'],
  'own.example': ['93.184.216.34'],
  'database.internal': ['192.168.7.7'],
}
const LITERALS = [
  '127.0.0.1',
  '127.1',
  '0x7f.1',
  '2130706433',
  'localhost',
  '[::1]',
  '[::ffff:7f00:1]',
  '0.0.0.0',
  '[::]',
]

attack(
  'makes the worker fetch from loopback, private, metadata and embedded addresses by `image`',
  { target: 'images', attacker: ATTACKER, finding: 8, skip },
  async (t) => {
    const inside = await startRegistry()
    t.after(() => inside.close())
    inside.push('a', '1', await makeTestImage({ layers: [[{ path: 'secret' }]] }))
    const port = new URL(`http://${inside.address}`).port
    const http = outboundHttp({
      allowed: '',
      names: { ...NAMES, localhost: ['127.0.0.1', '::1'] },
      own: ['93.184.216.34'],
    })
    const store = await openStore(await makeFolder(t), { http })
    const hosts = [...Object.keys(NAMES), 'no-such-host.internal', ...LITERALS].map((host) => `${host}:${port}`)
    const texts = await Promise.all(hosts.map((host) => refusalOf(store, host)))
    assert.equal(inside.requests.length, 0, 'a registry on loopback was reached')
    assert.equal(new Set(texts).size, 1, `texts differ:\n${texts.join('\n')}`)
    assert.match(texts[0] ?? '', ONE_TEXT)
    return {
      tries: hosts.length,
      outcome: `no request arrived inside, and ${String(hosts.length)} refusals have the same text, also for a name that doesn't exist`,
    }
  },
)

attack(
  'tells open ports, closed ports and closed addresses inside apart by the texts of errors',
  { target: 'images', attacker: ATTACKER, finding: 8, skip },
  async (t) => {
    const inside = await startRegistry()
    const gone = await startRegistry()
    await gone.close()
    t.after(() => inside.close())
    const store = await openStore(await makeFolder(t), { http: outboundHttp({ allowed: 'localhost:1' }) })
    const hosts = [inside.address, gone.address, 'localhost:1', '127.0.0.1:1', '10.255.255.1:443']
    const texts = await Promise.all(hosts.map((host) => refusalOf(store, host)))
    assert.equal(new Set(texts).size, 1, `texts differ:\n${texts.join('\n')}`)
    return { tries: hosts.length, outcome: 'an open port, closed ports and closed addresses are refused with one text' }
  },
)

attack(
  'leads the worker further inside by a redirect or a token realm',
  { target: 'images', attacker: 'a registry that the operator named', finding: 8, skip },
  async (t) => {
    const inside = await startRegistry()
    t.after(() => inside.close())
    const requests: string[] = []
    const replies: { readonly status: number; readonly headers: Record<string, string> }[] = []
    const evil = createServer((request, response) => {
      requests.push(request.url ?? '')
      const { status, headers } = replies[Number(/^\/v2\/(\d+)\//.exec(request.url ?? '')?.[1])] ?? {
        status: 500,
        headers: {},
      }
      response.writeHead(status, headers).end()
    })
    await new Promise<void>((resolve) => evil.listen(0, '127.0.0.1', resolve))
    t.after(() => evil.close())
    const bound = evil.address()
    const evilPort = typeof bound === 'object' && bound !== null ? String(bound.port) : ''
    const port = new URL(`http://${inside.address}`).port
    const http = outboundHttp({ allowed: `127.0.0.1:${evilPort}`, names: { ...NAMES, localhost: ['127.0.0.1'] } })
    const store = await openStore(await makeFolder(t), { http })
    const targets = [
      ...Object.keys(NAMES).map((host) => `https://${host}:${port}/`),
      ...['127.0.0.1', 'localhost', '[::ffff:127.0.0.1]'].map((host) => `http://${host}:${port}/`),
      'http://169.254.169.254/latest/meta-data/',
    ]
    for (const to of targets) {
      replies.push({ status: 307, headers: { location: to } })
      replies.push({ status: 401, headers: { 'www-authenticate': `Bearer realm="${to}",service="x"` } })
    }
    const asked = replies.map((_reply, index) => refusalOf(store, `127.0.0.1:${evilPort}`, String(index)))
    const texts = await Promise.all(asked)
    assert.ok(requests.length >= replies.length, 'the attacker’s registry was never asked')
    assert.equal(inside.requests.length, 0, 'a host inside was reached')
    assert.equal(new Set(texts).size, 1, `texts differ:\n${[...new Set(texts)].join('\n')}`)
    assert.match(texts[0] ?? '', ONE_TEXT)
    return {
      tries: replies.length,
      outcome: 'no redirect and no realm was followed inside, and all refusals have one text',
    }
  },
)

test('a registry on loopback that the operator named is used', { skip: skip ?? false }, async (t) => {
  const registry = await startRegistry()
  t.after(() => registry.close())
  registry.push('a', '1', await makeTestImage({ layers: [[{ path: 'file' }]] }))
  for (const allowed of [registry.address, '127.0.0.1', '127.0.0.0/8']) {
    const store = await openStore(await makeFolder(t), { http: outboundHttp({ allowed }) })
    assert.equal((await store.resolve(`${registry.address}/a:1`, wanted())).layers.length, 1, allowed)
  }
})

/** The text with which a pull from a host is refused, without the name of the host. */
async function refusalOf(store: ImageStore, host: string, name = 'a'): Promise<string> {
  const error: unknown = await store.resolve(`${host}/${name}:1`, wanted()).then(
    () => null,
    (reason: unknown) => reason,
  )
  assert.ok(error instanceof StartError, `${host}: the image was pulled`)
  return error.message.replaceAll(host, 'HOST')
}

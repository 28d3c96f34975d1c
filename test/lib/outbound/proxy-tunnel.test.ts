import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer, type IncomingMessage } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import { connect, type AddressInfo, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import { after, before, test } from 'node:test'
import { judgeOutbound, parseNamedDestination } from '../../../src/domain/network/outbound-rule.ts'
import { proxyFor } from '../../../src/domain/network/proxy-rule.ts'
import { makeGuardedHttp, type GuardedHttp } from '../../../src/lib/outbound/guarded-http.ts'

// Pulls through a proxy of the operator. The proxy resolves the names, and connects to a registry of this test.

const LIMITS = { replyMs: 5_000, idleMs: 5_000, totalMs: 10_000, bodyBytes: 1_000_000 }
let folder: string
let registry: Server
let proxy: Server
/** The requests that the proxy got: what to connect to, and the credential for the proxy. */
let asked: { readonly target: string; readonly credential: string | undefined }[] = []

const portOf = (server: Server): number => (server.address() as AddressInfo).port
const listen = (server: Server): Promise<void> => new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))

before(async () => {
  folder = mkdtempSync(join(tmpdir(), 'sandyard-proxy-'))
  const [key, cert] = [join(folder, 'key'), join(folder, 'cert')]
  const names = 'subjectAltName=DNS:registry.example,DNS:mirror.example'
  const options = ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '1', '-subj', '/CN=x', '-addext', names]
  execFileSync('openssl', [...options, '-keyout', key, '-out', cert], { stdio: 'ignore' })
  setDefaultCACertificates([...getCACertificates('default'), readFileSync(cert, 'utf8')])
  registry = createTlsServer({ key: readFileSync(key), cert: readFileSync(cert) }, (request, response) => {
    if (request.url === '/inside') response.writeHead(302, { location: 'https://registry.lan/' }).end()
    else response.end(`for ${String(request.headers.authorization)}`)
  })
  proxy = createServer((_request, response) => response.writeHead(405).end())
  proxy.on('connect', (request: IncomingMessage, client) => {
    asked.push({ target: String(request.url), credential: request.headers['proxy-authorization'] })
    if (request.url?.startsWith('refused.') === true) return client.end('HTTP/1.1 403 Forbidden\r\n\r\n')
    const upstream = connect(portOf(registry), '127.0.0.1', () => {
      client.write('HTTP/1.1 200 OK\r\n\r\n')
      client.pipe(upstream).pipe(client)
    })
    upstream.on('error', () => client.destroy())
    client.on('error', () => upstream.destroy())
    return undefined
  })
  await Promise.all([listen(registry), listen(proxy)])
})
after(() => {
  registry.close()
  proxy.close()
  rmSync(folder, { recursive: true })
})

/** A client behind the proxy. Names that aren't listed can't be resolved on this machine. */
function behindProxy(names: Readonly<Record<string, readonly string[]>> = {}): GuardedHttp {
  asked = []
  const named = ['registry.lan'].flatMap((entry) => parseNamedDestination(entry) ?? [])
  const rule = { proxy: new URL(`http://me:p%40ss@127.0.0.1:${String(portOf(proxy))}`), direct: ['direct.example'] }
  return makeGuardedHttp({
    judge: ({ url, address }) => judgeOutbound({ named, own: [] }, url, address),
    resolve: (name) =>
      names[name] === undefined ? Promise.reject(new Error('ENOTFOUND')) : Promise.resolve(names[name]),
    proxyFor: (url) => proxyFor(rule, url),
  })
}

const get = (http: GuardedHttp, url: string) =>
  http.send({
    url: new URL(url),
    method: 'GET',
    headers: { authorization: 'secret' },
    limits: LIMITS,
    signal: new AbortController().signal,
    linkedFrom: null,
  })

test('a pull goes through the proxy, which resolves the name, and is encrypted to the registry', async () => {
  const reply = await get(behindProxy(), 'https://registry.example/v2/')
  assert.equal(await text(reply.body), 'for secret')
  const credential = `Basic ${Buffer.from('me:p@ss').toString('base64')}`
  assert.deepEqual(asked, [{ target: 'registry.example:443', credential }])
})

test('a host whose certificate is not its own is refused, and so is one that the proxy refuses', async () => {
  await assert.rejects(get(behindProxy(), 'https://other.example/'), /altnames|certificate/i)
  await assert.rejects(
    get(behindProxy(), 'https://refused.example/'),
    /HTTPS_PROXY refused refused\.example:443: status 403/,
  )
})

test('the proxy is never asked for addresses inside, nor for names that lead there', async () => {
  const http = behindProxy({ 'inside.example': ['10.0.0.7'], 'metadata.example': ['169.254.169.254'] })
  for (const host of ['10.0.0.7', '169.254.169.254', '[fd00::1]', 'inside.example', 'metadata.example'])
    await assert.rejects(get(http, `https://${host}/`), /no address of .* is allowed/, host)
  assert.deepEqual(asked, [])
})

test('a public registry behind the proxy does not lead to a registry that the operator named', async () => {
  await assert.rejects(get(behindProxy(), 'https://mirror.example/inside'), /no address of registry\.lan is allowed/)
  assert.deepEqual(
    asked.map(({ target }) => target),
    ['mirror.example:443'],
  )
})

test('NO_PROXY names hosts with their subdomains, ports, addresses and blocks; this machine is always direct', () => {
  const proxy = new URL('http://proxy.lan:3128')
  const direct = ['example.com', '.lan', '*.corp', 'ported.org:5000', '10.0.0.0/8', '192.0.2.7']
  const isProxied = (url: string): boolean => proxyFor({ proxy, direct }, new URL(url)) !== null
  for (const host of ['example.com', 'a.example.com', 'r.lan', 'x.corp', 'ported.org:5000', '10.1.2.3', '192.0.2.7'])
    assert.ok(!isProxied(`https://${host}/`), host)
  for (const host of ['localhost', 'a.localhost', '127.0.0.1', '[::1]']) assert.ok(!isProxied(`https://${host}/`), host)
  for (const host of ['notexample.com', 'ported.org', '11.0.0.1', 'registry.org'])
    assert.ok(isProxied(`https://${host}/`), host)
  assert.ok(!isProxied('http://registry.org/'), 'only HTTPS goes through it')
  assert.equal(proxyFor({ proxy, direct: ['*'] }, new URL('https://registry.org/')), null)
})

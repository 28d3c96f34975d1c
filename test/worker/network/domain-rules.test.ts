import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { asId, type RunId } from '../../../src/domain/ids.ts'
import type { NetworkSpec } from '../../../src/domain/spec/spec.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { openSandboxNetworks } from '../../../src/worker/network/open-sandbox-networks.ts'
import type { SandboxNetworks } from '../../../src/worker/network/sandbox-network.ts'
import { makeCertificate, type TestCertificate } from '../../support/certificates.ts'
import { startHost, type Get, type NamedHost } from '../../support/named-world.ts'
import { ip, OUTSIDE } from '../../support/network-world.ts'
import { NO_DENIALS, networksOptions, networkWith } from '../../support/networks.ts'
import { isInOwnNetwork } from '../../support/own-network.ts'

const NAMES = {
  'good.example': { addresses: [OUTSIDE.public] },
  'alias.example': { addresses: [OUTSIDE.public], alias: 'cdn.example' },
  'bad.example': { addresses: [OUTSIDE.otherPublic] },
  'www.tree.example': { addresses: [OUTSIDE.public] },
  'denied.example': { addresses: [OUTSIDE.hardDenied] },
  'meta.internal': { addresses: [OUTSIDE.metadata] },
  'brief.example': { addresses: [OUTSIDE.public], ttlSecs: 1 },
}

if (isInOwnNetwork(import.meta.filename)) {
  describe('rules by name', () => {
    const cleanups = new AsyncDisposableStack()
    let networks: SandboxNetworks
    let outside: NamedHost
    let certificate: TestCertificate

    before(async () => {
      const folder = mkdtempSync(join(tmpdir(), 'sandyard-names-'))
      cleanups.defer(() => {
        rmSync(folder, { recursive: true })
      })
      certificate = await makeCertificate(folder, Object.keys(NAMES))
      await makeOutside()
      outside = startHost('/run/netns/outside')
      cleanups.defer(() => outside.close())
      await outside.ask({ kind: 'serveDns', address: OUTSIDE.resolver, names: NAMES })
      await outside.ask({ kind: 'serveWeb', ...certificate })
      await outside.ask({ kind: 'serveDatagrams', port: 9_000 })
      await outside.ask({ kind: 'serveBanner', port: 22 })
      networks = await openSandboxNetworks(cleanups.use(await networksOptions()))
      cleanups.defer(() => networks.close())
    })
    after(() => cleanups.disposeAsync())

    test('an allowed name is reached over TLS, HTTP and datagrams once it was looked up, and nothing else is', async () => {
      await using box = await attach('allow', networkWith([{ destination: { domain: 'good.example' } }]))
      assert.equal(await box.web(), 'ECONNRESET', 'an address without a look-up')
      assert.equal(await box.datagram(), 'ABORT_ERR')
      assert.equal(await box.lookUp('good.example'), OUTSIDE.public)
      assert.match(await box.web(), /^200 .*"sni":"good.example"/)
      assert.match(await box.web({ port: 80, tls: undefined }), /^200 .*"host":"good.example"/)
      assert.equal(await box.datagram(), 'answered')
      assert.equal(await box.web({ address: OUTSIDE.otherPublic }), 'ECONNRESET', 'another address')
    })

    test('another name on the same address is refused by SNI', async () => {
      await using box = await attach('sni', networkWith([{ destination: { domain: 'good.example' } }]))
      await box.lookUp('good.example')
      assert.equal(await box.web({ tls: 'www.tree.example' }), 'ECONNRESET')
      assert.match(await box.web({ tls: null }), /^200/, 'without a name the address decides')
    })

    test('names that the policy denies do not exist', async () => {
      await using box = await attach('queries', networkWith([{ destination: { domain_suffix: 'tree.example' } }]))
      assert.equal(await box.lookUp('good.example'), 'ENOTFOUND')
      assert.equal(await box.lookUp('WWW.Tree.example'), OUTSIDE.public)
      assert.match(await box.web({ tls: 'www.tree.example' }), /^200/)
    })

    test('a denied name is refused by SNI and by its address, and others stay open', async () => {
      const rules = [{ destination: { domain: 'bad.example' }, action: 'deny' }] as const
      await using box = await attach('deny', networkWith(rules, { default_egress: 'allow' }))
      assert.equal(await box.lookUp('bad.example'), 'ENOTFOUND')
      assert.equal(await box.web({ tls: 'bad.example' }), 'ECONNRESET')
      assert.match(await box.web(), /^200/)
      assert.equal(await box.datagram(), 'answered')
    })

    test('a name that leads to an address that the operator denies stays denied, and so does the metadata address', async () => {
      const rules = ['denied.example', 'meta.internal'].map((domain) => ({ destination: { domain } }))
      await using box = await attach('operator', networkWith(rules))
      assert.equal(await box.lookUp('denied.example'), OUTSIDE.hardDenied)
      assert.equal(await box.web({ address: OUTSIDE.hardDenied, tls: 'denied.example' }), 'EHOSTUNREACH')
      await box.lookUp('meta.internal')
      assert.equal(await box.web({ address: OUTSIDE.metadata, tls: 'meta.internal' }), 'ECONNRESET')
    })

    test('a name ends with its time to live, also over datagrams', async () => {
      await using box = await attach('ttl', networkWith([{ destination: { domain: 'brief.example' } }]))
      await box.lookUp('brief.example')
      assert.match(await box.web({ tls: 'brief.example' }), /^200/)
      await systemClock.sleep(2_100)
      assert.equal(await box.web({ tls: 'brief.example' }), 'ECONNRESET')
      assert.equal(await box.datagram(), 'ABORT_ERR')
    })

    test('with strict, a connection that is allowed by name must be readable', async () => {
      const network = { ...networkWith([{ destination: { domain: 'good.example' } }]), strict: true }
      await using box = await attach('strict', network)
      await box.lookUp('good.example')
      assert.equal(await box.web(), 'ECONNRESET')
      assert.match(await box.web({ port: 80, tls: undefined }), /^200/)
    })

    test('a server that speaks first is judged by its address after a pause', async () => {
      await using box = await attach('banner', networkWith([{ destination: { domain: 'good.example' } }]))
      await box.lookUp('good.example')
      assert.equal(
        await box.host.ask({ kind: 'readBanner', address: OUTSIDE.public, port: 22 }),
        'the server speaks first',
      )
    })

    test('queries to another resolver get the answers of the sandbox own one', async () => {
      const rules = [{ destination: { domain: 'good.example' } }, { destination: { cidr: '44.0.113.200' } }]
      await using box = await attach('resolver', networkWith(rules))
      const asked = await box.host.ask({ kind: 'lookUp', server: '44.0.113.200', name: 'good.example' })
      assert.equal(asked, OUTSIDE.public)
      assert.match(await box.web(), /^200/)
    })

    async function attach(name: string, network: NetworkSpec) {
      const run = asId<RunId>(name)
      const { netnsPath, resolvers } = await networks.attach(run, network, NO_DENIALS)
      const host = startHost(netnsPath)
      const server = resolvers[0] ?? ''
      return {
        host,
        lookUp: (asked: string) => host.ask({ kind: 'lookUp', server, name: asked }),
        datagram: () => host.ask({ kind: 'datagram', address: OUTSIDE.public, port: 9_000 }),
        web: (get: Partial<Get> = {}) => {
          const tls = 'tls' in get ? get.tls : 'good.example'
          const ask = { address: OUTSIDE.public, port: 443, host: tls ?? 'good.example', ...get }
          return host.ask({ kind: 'get', ...ask, ...(tls === undefined ? {} : { tls }) })
        },
        [Symbol.asyncDispose]: async () => {
          await host.close()
          await networks.detach(run)
        },
      }
    }
  })
}

/** A network namespace with the addresses of hosts outside of this machine. */
async function makeOutside(): Promise<void> {
  const { hostPublic, hostPrivate: _, ...addresses } = OUTSIDE
  await ip([
    'netns add outside',
    'link add w0 type veth peer name eth0 netns outside',
    `addr add ${hostPublic}/24 dev w0`,
    'link set w0 up',
    'route add 169.254.0.0/16 dev w0',
    `route add default via ${OUTSIDE.public}`,
  ])
  await ip(
    [
      'link set lo up',
      ...Object.values(addresses).map((address) => `addr add ${address}/24 dev eth0`),
      'link set eth0 up',
      `route add default via ${hostPublic}`,
    ],
    'outside',
  )
}

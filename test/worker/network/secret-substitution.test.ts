import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { EgressSecrets, RunInterception } from '../../../src/domain/network/interception.ts'
import type { RunId } from '../../../src/domain/ids.ts'
import type { RunSecret } from '../../../src/domain/spec/secrets.ts'
import type { NetworkSpec } from '../../../src/domain/spec/spec.ts'
import { makeAuthority } from '../../../src/lib/make-authority.ts'
import type { EgressRefusal } from '../../../src/worker/egress/messages.ts'
import { openSandboxNetworks } from '../../../src/worker/network/open-sandbox-networks.ts'
import type { SandboxNetworks } from '../../../src/worker/network/sandbox-network.ts'
import { attachNamedInmate, makeNamedWorld, type NamedHost } from '../../support/named-world.ts'
import { OUTSIDE } from '../../support/network-world.ts'
import { DEFAULT_NETWORK, networksOptions, networkWith } from '../../support/networks.ts'
import { isInOwnNetwork } from '../../support/own-network.ts'

const NAMES = {
  'good.example': { addresses: [OUTSIDE.public] },
  'other.example': { addresses: [OUTSIDE.otherPublic] },
}

if (isInOwnNetwork(import.meta.filename)) {
  describe('secrets on the way out', () => {
    const cleanups = new AsyncDisposableStack()
    const refusals: EgressRefusal[] = []
    let networks: SandboxNetworks
    let outside: NamedHost
    let interception: RunInterception
    let caFile: string

    before(async () => {
      const world = cleanups.use(await makeNamedWorld(NAMES))
      outside = world.outside
      const folder = mkdtempSync(join(tmpdir(), 'sandyard-secrets-'))
      cleanups.defer(() => {
        rmSync(folder, { recursive: true })
      })
      const authority = await makeAuthority('Sandyard', { nowMs: Date.now() })
      caFile = join(folder, 'ca.pem')
      writeFileSync(caFile, authority.certificate)
      interception = {
        intercepted_ports: [443],
        bypass: [],
        block_quic: true,
        verify_upstream: true,
        scoped_verify_upstream: [],
        upstream_ca_certs: [readFileSync(world.certificate.caFile, 'utf8')],
        scoped_upstream_ca_certs: [],
        cache: { capacity: 10, validity_hours: 24 },
        authority,
      }
      await outside.ask({ kind: 'serveDatagrams', address: OUTSIDE.public, port: 443 })
      await outside.ask({ kind: 'serveDatagrams', address: OUTSIDE.public, port: 9_000 })
      await outside.ask({ kind: 'serveBanner', port: 22 })
      networks = await openSandboxNetworks(cleanups.use(await networksOptions()))
      networks.onRefused((_, refusal) => refusals.push(refusal))
      cleanups.defer(() => networks.close())
    })
    after(() => cleanups.disposeAsync())

    test('the value arrives at an allowed host, and the sandbox sees neither it nor another certificate', async () => {
      await using box = await attach('allowed')
      await box.lookUp('good.example')
      const reply = await box.web({ headers: { authorization: 'Bearer $MSB_KEY' }, caFile })
      assert.match(reply, /"authorization":"Bearer the-real-value"/)
      assert.match(reply, /"sni":"good.example"/)
    })

    test('the placeholder leaves to no other host, and the refusal tells where it was found', async () => {
      await using box = await attach('forbidden')
      await box.lookUp('other.example')
      await outside.ask({ kind: 'takeRequests' })
      const other = { address: OUTSIDE.otherPublic, tls: 'other.example', caFile } as const
      const reply = await box.web({ ...other, headers: { authorization: 'Bearer $MSB_KEY' } })
      assert.match(reply, /^403 .*"secret_policy_denied","domain":"other.example"/)
      assert.equal(await outside.ask({ kind: 'takeRequests' }), '')
      const { violation, request } = refusals.at(-1) ?? {}
      assert.deepEqual([violation?.env_var, violation?.location, request?.host], ['KEY', 'header', 'other.example'])
      assert.match(await box.web(other), /^200/, 'a request without it passes')
    })

    test('an allowed name at an address without a look-up gets no value', async () => {
      await using box = await attach('untied')
      const reply = await box.web({ address: OUTSIDE.otherPublic, headers: { authorization: '$MSB_KEY' }, caFile })
      assert.match(reply, /^403/)
    })

    test('plain HTTP gets the value only if the secret allows it, and never another host', async () => {
      const plain = { port: 80, tls: undefined, headers: { 'x-key': '$MSB_KEY' } } as const
      await using strict = await attach('plain-strict')
      await strict.lookUp('good.example')
      assert.match(await strict.web(plain), /^403/)
      await using open = await attach('plain-open', {
        secrets: [secret({ require_tls_identity: false })],
        interception,
      })
      await open.lookUp('good.example')
      assert.match(await open.web(plain), /"x-key":"the-real-value"/)
      assert.match(await open.web({ ...plain, host: 'other.example' }), /^403/)
    })

    test('opaque bytes with the placeholder end the connection; others pass, and servers may speak first', async () => {
      await using box = await attach('opaque')
      const hex = Buffer.from('\u0001\u0002 $MSB_KEY').toString('hex')
      assert.equal(await box.host.ask({ kind: 'write', address: OUTSIDE.public, port: 22, hex }), 'ECONNRESET')
      const banner = await box.host.ask({ kind: 'readBanner', address: OUTSIDE.public, port: 22 })
      assert.equal(banner, 'the server speaks first')
    })

    test('QUIC is closed, and other datagrams pass', async () => {
      await using box = await attach('quic')
      const datagram = (port: number) => box.host.ask({ kind: 'datagram', address: OUTSIDE.public, port })
      assert.deepEqual([await datagram(443), await datagram(9_000)], ['ABORT_ERR', 'answered'])
    })

    test('strict rules by name hold for what is intercepted, and bypassed hosts keep their certificate', async () => {
      const network = {
        ...networkWith([{ destination: { domain: 'good.example' } }]),
        strict: true,
        secrets: [secret()],
      }
      await using box = await attach('strict', undefined, network)
      await box.lookUp('good.example')
      assert.match(await box.web({ caFile }), /^200/)
      await using bypassed = await attach('bypass', {
        secrets: [],
        interception: { ...interception, bypass: ['*.example'] },
      })
      await bypassed.lookUp('good.example')
      assert.equal(await bypassed.web({ caFile }), 'UNABLE_TO_VERIFY_LEAF_SIGNATURE')
      assert.match(await bypassed.web(), /^200/)
    })

    test('a server that can not be verified gets nothing', async () => {
      await using box = await attach('unverified', {
        secrets: [secret()],
        interception: { ...interception, upstream_ca_certs: [] },
      })
      await box.lookUp('good.example')
      await outside.ask({ kind: 'takeRequests' })
      assert.match(await box.web({ headers: { authorization: '$MSB_KEY' }, caFile }), /ECONNRESET|socket hang up/)
      assert.equal(await outside.ask({ kind: 'takeRequests' }), '')
    })

    test('new values reach new connections, and after a restart of the worker nothing passes until it has them', async () => {
      await using box = await attach('rotated')
      await box.lookUp('good.example')
      const ask = { headers: { authorization: '$MSB_KEY' }, caFile } as const
      await networks.setSecrets(box.run, { secrets: [secret({ value: 'the-next-value' })], interception })
      assert.match(await box.web(ask), /the-next-value/)
      await using options = await networksOptions({ namePrefix: 'again', addressPool: '10.210.0.0/16' })
      const first = await openSandboxNetworks(options)
      const kept = await attachNamedInmate(
        first,
        'kept',
        { ...DEFAULT_NETWORK, secrets: [secret()] },
        { secrets: [secret()], interception },
      )
      await first.close()
      const second = await openSandboxNetworks(options)
      await kept.lookUp('good.example')
      assert.equal(await kept.web(ask), 'ECONNRESET')
      await second.setSecrets('kept' as RunId, { secrets: [secret()], interception })
      assert.match(await kept.web(ask), /the-real-value/)
      await kept.host.close()
      await second.detach('kept' as RunId)
      await second.close()
    })

    function attach(
      name: string,
      given: EgressSecrets = { secrets: [secret()], interception },
      network: NetworkSpec = { ...DEFAULT_NETWORK, secrets: [secret()] },
    ) {
      return attachNamedInmate(networks, name, network, given)
    }
  })
}

function secret(changes: Partial<RunSecret> = {}): RunSecret {
  return {
    env_var: 'KEY',
    placeholder: '$MSB_KEY',
    value: 'the-real-value',
    allowed_hosts: [{ type: 'exact', value: 'good.example' }],
    substitution: { headers: true, basic_auth: true, header_fields: null, query: false, body: false },
    passthrough_hosts: [],
    violation_action: { type: 'block_and_log' },
    require_tls_identity: true,
    ...changes,
  }
}

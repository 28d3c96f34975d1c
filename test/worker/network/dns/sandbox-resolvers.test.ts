import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { RunId } from '../../../../src/domain/ids.ts'
import type { DnsSettings } from '../../../../src/domain/spec/dns-settings.ts'
import type { NetworkPolicy } from '../../../../src/domain/spec/spec.ts'
import type { Transport } from '../../../../src/worker/network/dns/dns-upstream.ts'
import { cidr } from '../../../../src/domain/cidr.ts'
import { compilePolicy } from '../../../../src/domain/network/network-policy.ts'
import { systemClock } from '../../../../src/lib/clock.ts'
import { makeOwnRanges } from '../../../../src/worker/network/rules/own-ranges.ts'
import { makeSandboxResolvers } from '../../../../src/worker/network/dns/sandbox-resolvers.ts'
import { openSandboxNetworks } from '../../../../src/worker/network/open-sandbox-networks.ts'
import type { SandboxNetworks } from '../../../../src/worker/network/sandbox-network.ts'
import { attachNamedInmate, makeNamedWorld, startHost } from '../../../support/named-world.ts'
import { ip, OUTSIDE } from '../../../support/network-world.ts'
import { DEFAULT_NETWORK, DNS_RULE, networksOptions, networkWith } from '../../../support/networks.ts'
import { isInOwnNetwork } from '../../../support/own-network.ts'

const OWN = { host: OUTSIDE.otherPublic, port: 53 }
const SILENT = { host: OUTSIDE.public, port: 9_999 }

if (isInOwnNetwork(import.meta.filename)) {
  describe('nameservers of a sandbox', () => {
    const cleanups = new AsyncDisposableStack()
    let networks: SandboxNetworks

    before(async () => {
      const names = {
        'usual.example': { addresses: [OUTSIDE.public] },
        'ns.example': { addresses: [OUTSIDE.otherPublic] },
        'loop.example': { addresses: ['127.0.0.1'] },
        'many.example': { addresses: ['127.0.0.1', ...Array.from({ length: 9 }, (_, at) => `44.0.1.${String(at)}`)] },
      }
      const { outside } = cleanups.use(await makeNamedWorld(names))
      await outside.ask({ kind: 'serveDatagrams', address: SILENT.host, port: 9_000 })
      for (const address of [OUTSIDE.otherPublic, OUTSIDE.private, OUTSIDE.hardDenied]) {
        const host = startHost('/run/netns/outside')
        cleanups.defer(() => host.close())
        const own = { 'own.example': { addresses: [OUTSIDE.public] }, 'inner.example': { addresses: ['10.1.2.3'] } }
        await host.ask({ kind: 'serveDns', address, names: own })
      }
      networks = await openSandboxNetworks(cleanups.use(await networksOptions()))
      cleanups.defer(() => networks.close())
    })
    after(() => cleanups.disposeAsync())

    test('a nameserver of the sandbox answers, by address and by name, and that of others does not', async () => {
      await using box = await attach('own', { nameservers: [OWN] })
      await using named = await attach('named', { nameservers: [{ host: 'ns.example', port: 53 }] })
      await using usual = await attach('usual', null)
      assert.equal(await box.lookUp('own.example'), OUTSIDE.public)
      assert.equal(await named.lookUp('own.example'), OUTSIDE.public)
      assert.deepEqual(
        [await usual.lookUp('own.example'), await box.lookUp('usual.example')],
        ['ENOTFOUND', 'ENOTFOUND'],
      )
    })

    test('a nameserver that does not answer in time is followed by the next', async () => {
      await using box = await attach('failover', { nameservers: [SILENT, OWN], query_timeout_ms: 300 })
      assert.equal(await box.lookUp('own.example'), OUTSIDE.public)
    })

    test('a nameserver that the policy or the operator denies is not asked', async () => {
      for (const host of [OUTSIDE.private, OUTSIDE.hardDenied]) {
        await using box = await attach(`denied-${host.replaceAll('.', '-')}`, { nameservers: [{ host, port: 53 }] })
        assert.equal(await box.lookUp('own.example'), 'ESERVFAIL', host)
      }
      const policy = networkWith([DNS_RULE, { destination: { cidr: OUTSIDE.private } }])
      await using box = await attach('allowed', { nameservers: [{ host: OUTSIDE.private, port: 53 }] }, policy)
      assert.equal(await box.lookUp('own.example'), OUTSIDE.public)
    })

    test('no nameserver leads to a service of the host, whatever the policy allows', async () => {
      const own = '10.77.0.1'
      await ip([`addr add ${own}/32 dev lo`])
      for (const address of ['127.0.0.1', own]) {
        const host = startHost('/proc/self/ns/net')
        cleanups.defer(() => host.close())
        await host.ask({ kind: 'serveDns', address, names: { 'own.example': { addresses: [OUTSIDE.public] } } })
        assert.equal(await host.ask({ kind: 'lookUp', server: address, name: 'own.example' }), OUTSIDE.public)
      }
      await using options = await networksOptions({
        namePrefix: 'inner',
        addressPool: '10.211.0.0/16',
        ownRanges: makeOwnRanges({ resolvers: [], controlPlane: () => [], clock: systemClock }),
      })
      const inner = await openSandboxNetworks(options)
      const policy = networkWith([DNS_RULE, { destination: { group: 'loopback' } }], { default_egress: 'allow' })
      for (const host of ['127.0.0.1', '0.0.0.0', 'loop.example', own]) {
        const dns = settings({ nameservers: [{ host, port: 53 }] })
        const box = await attachNamedInmate(inner, `host-${host.replaceAll('.', '-')}`, { ...policy, dns })
        assert.equal(await box.lookUp('own.example'), 'ESERVFAIL', host)
        await box[Symbol.asyncDispose]()
      }
      await inner.close()
    })

    test('a special address for a public name passes only without rebind protection', async () => {
      await using safe = await attach('safe', { nameservers: [OWN] })
      await using open = await attach('open', { nameservers: [OWN], rebind_protection: false })
      assert.equal(await safe.lookUp('inner.example'), 'EREFUSED')
      assert.equal(await open.lookUp('inner.example'), '10.1.2.3')
    })

    test('a restarted worker goes on with the nameservers of a sandbox', async () => {
      await using options = await networksOptions({ namePrefix: 'again', addressPool: '10.210.0.0/16' })
      const first = await openSandboxNetworks(options)
      const box = await attachNamedInmate(first, 'kept', { ...DEFAULT_NETWORK, dns: settings({ nameservers: [OWN] }) })
      await first.close()
      const second = await openSandboxNetworks(options)
      assert.equal(await box.lookUp('own.example'), OUTSIDE.public)
      await box.host.close()
      await second.detach('kept' as RunId)
      await second.close()
    })

    test('each protocol of a query is judged, and addresses that no sandbox reaches are never asked', async () => {
      const { policy } = networkWith([{ destination: { cidr: '9.9.9.9' }, protocols: ['udp'] }])
      assert.deepEqual(await asked(policy, '9.9.9.9', 'udp'), [{ address: '9.9.9.9', port: 53 }])
      assert.deepEqual(await asked(policy, '9.9.9.9', 'tcp'), [])
      const open = networkWith([{ destination: { group: 'multicast' } }], { default_egress: 'allow' }).policy
      const closed = [
        '127.1.2.3',
        '0.1.2.3',
        '224.0.0.1',
        '255.255.255.255',
        '::1',
        '::',
        '::ffff:127.0.0.1',
        '44.0.0.9',
      ]
      for (const host of closed) assert.deepEqual(await asked(open, host, 'tcp'), [], host)
      assert.deepEqual(await asked(open, '44.0.0.8', 'tcp'), [{ address: '44.0.0.8', port: 53 }])
    })

    test('a nameserver with many addresses takes three of a query, and the next nameserver follows', async () => {
      const hostResolvers = [OUTSIDE.resolver, '9.9.9.1', '9.9.9.2', '9.9.9.3']
      const resolvers = makeSandboxResolvers({ hostResolvers, ownAddresses: () => [], clock: systemClock })
      const { egress } = compilePolicy(null, { gateway: cidr('10.0.0.1'), hardDeny: [] })
      resolvers.set('box', settings({ nameservers: [{ host: 'many.example', port: 53 }, OWN] }), egress)
      const found = (await resolvers.of('box')?.find('udp')) ?? []
      assert.equal(found.length, 4)
      assert.ok(found.slice(0, 3).every(({ address }) => address.startsWith('44.0.1.')))
      assert.deepEqual(found[3], { address: OWN.host, port: OWN.port })
      resolvers.set('usual', settings({}), egress)
      assert.equal((await resolvers.of('usual')?.find('udp'))?.length, 3)
    })

    function asked(policy: NetworkPolicy | null, host: string, transport: Transport) {
      const options = { hostResolvers: ['127.0.0.53'], ownAddresses: () => ['44.0.0.9'], clock: systemClock }
      const resolvers = makeSandboxResolvers(options)
      const { egress } = compilePolicy(policy, { gateway: cidr('10.0.0.1'), hardDeny: [] })
      resolvers.set('box', settings({ nameservers: [{ host, port: 53 }] }), egress)
      return resolvers.of('box')?.find(transport)
    }

    function attach(name: string, dns: Partial<DnsSettings> | null, network = DEFAULT_NETWORK) {
      return attachNamedInmate(networks, name, dns === null ? network : { ...network, dns: settings(dns) })
    }
  })
}

function settings(changes: Partial<DnsSettings>): DnsSettings {
  return { nameservers: [], query_timeout_ms: 2_000, rebind_protection: true, ...changes }
}

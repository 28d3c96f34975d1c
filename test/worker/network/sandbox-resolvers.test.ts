import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { RunId } from '../../../src/domain/ids.ts'
import type { DnsSettings } from '../../../src/domain/spec/dns-settings.ts'
import { openSandboxNetworks } from '../../../src/worker/network/open-sandbox-networks.ts'
import type { SandboxNetworks } from '../../../src/worker/network/sandbox-network.ts'
import { attachNamedInmate, makeNamedWorld, startHost } from '../../support/named-world.ts'
import { OUTSIDE } from '../../support/network-world.ts'
import { DEFAULT_NETWORK, DNS_RULE, networksOptions, networkWith } from '../../support/networks.ts'
import { isInOwnNetwork } from '../../support/own-network.ts'

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

    function attach(name: string, dns: Partial<DnsSettings> | null, network = DEFAULT_NETWORK) {
      return attachNamedInmate(networks, name, dns === null ? network : { ...network, dns: settings(dns) })
    }
  })
}

function settings(changes: Partial<DnsSettings>): DnsSettings {
  return { nameservers: [], query_timeout_ms: 2_000, rebind_protection: true, ...changes }
}

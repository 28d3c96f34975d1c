import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { makeLog } from '../../../src/lib/log.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { startDnsForwarder, type DnsForwarder } from '../../../src/worker/network/dns-forwarder.ts'
import { parseResolvConf, readHostResolvers } from '../../../src/worker/network/dns-upstream.ts'
import { RESOLVED, startProber } from '../../support/network-world.ts'
import { isInOwnNetwork } from '../../support/own-network.ts'

function start(address: string, resolvers: readonly string[]): Promise<DnsForwarder> {
  const names = { allows: () => true, reads: () => false, learn: () => Promise.resolve(true) }
  const resolversOf = () => null
  const rest = { random: systemRandom, log: makeLog('warn'), names, resolversOf }
  return startDnsForwarder({ address, resolvers, hasRebindProtection: true, ...rest })
}

if (isInOwnNetwork(import.meta.filename)) {
  describe('the DNS forwarder', () => {
    test('the next resolver is asked when one is unreachable, and the reply is SERVFAIL when all are', async () => {
      const prober = startProber(null)
      const replyHex = Buffer.from(RESOLVED.split('.').map(Number)).toString('hex')
      await prober.ask({ kind: 'serveUdp', host: '127.0.0.7', port: 53, replyHex })
      const some = await start('127.0.0.8', ['127.0.0.6', '127.0.0.7'])
      const none = await start('127.0.0.9', ['127.0.0.6'])
      assert.equal(await prober.ask({ kind: 'resolve', server: '127.0.0.8', name: 'a.example.com' }), RESOLVED)
      assert.equal(await prober.ask({ kind: 'resolve', server: '127.0.0.9', name: 'a.example.com' }), 'ESERVFAIL')
      await some.close()
      await none.close()
      await prober.close()
    })

    test('when the host has a resolver at port 53, the forwarder uses another port', async () => {
      const first = await start('127.0.0.8', [])
      const second = await start('127.0.0.8', [])
      assert.equal(first.port, 53)
      assert.notEqual(second.port, 53)
      await first.close()
      await second.close()
      const again = await start('127.0.0.8', [])
      assert.equal(again.port, 53)
      await again.close()
    })

    test('a message that is not a query gets a format error or no answer, and the forwarder continues', async () => {
      const prober = startProber(null)
      const forwarder = await start('127.0.0.8', [])
      assert.equal(await prober.ask({ kind: 'udp', host: '127.0.0.8', port: 53, text: 'short' }), 'timeout')
      assert.equal(
        await prober.ask({ kind: 'udp', host: '127.0.0.8', port: 53, text: 'long enough to be one' }),
        'answered',
      )
      const reply = await prober.ask({ kind: 'dnsOverTcp', server: '127.0.0.8', queryHex: 'ff'.repeat(20) })
      assert.match(reply, /^ffff/)
      await forwarder.close()
      await prober.close()
    })

    test('only the addresses of a resolv.conf are used', () => {
      const text = '# made by hand\nsearch example.com\nnameserver 10.0.0.2\n nameserver\t::1\nnameserver example.com\n'
      assert.deepEqual(parseResolvConf(text), ['10.0.0.2', '::1'])
    })

    test('a host without a resolv.conf asks itself', async () => {
      assert.deepEqual(await readHostResolvers('/nowhere/resolv.conf'), ['127.0.0.1'])
    })
  })
}

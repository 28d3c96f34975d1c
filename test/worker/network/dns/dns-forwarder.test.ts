import assert from 'node:assert/strict'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { describe, test } from 'node:test'
import { makeLog } from '../../../../src/lib/log.ts'
import { systemRandom } from '../../../../src/lib/random.ts'
import { startDnsForwarder, type DnsForwarder } from '../../../../src/worker/network/dns/dns-forwarder.ts'
import { parseResolvConf, readHostResolvers } from '../../../../src/worker/network/dns/dns-upstream.ts'
import { RESOLVED, startProber } from '../../../support/network-world.ts'
import { isInOwnNetwork } from '../../../support/own-network.ts'

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

    test('a resolver gets the question and the size of answers, and no other byte of a query', async () => {
      const resolver = createSocket('udp4').bind(53, '127.0.0.7')
      await once(resolver, 'listening')
      const forwarder = await start('127.0.0.8', ['127.0.0.7'])
      const client = createSocket('udp4')
      const head = '1234013000010000000000' // recursion desired, AD and CD
      const question = '0161076578616d706c650000010001'
      const edns = '0000291000ff00ffff'
      const command = Buffer.from('\r\nFLUSHALL\r\n').toString('hex')
      const options = `000e0003000a${command.slice(0, 20)}`
      const cases = [
        [`${head}00${question}`, `013000010000000000 00${question}`],
        [`${head}01${question}${edns}0000`, `0130000100000000 0001${question}00002910000000 80000000`],
        [`${head}01${question}${edns}${options}${command}`, `01300001000000000001${question}0000291000000080000000`],
        [`1234013000010001000100${'01'}${question}${command}`, `01300001000000000000${question}`],
      ] as const
      for (const [sent, arrives] of cases) {
        client.send(Buffer.from(sent, 'hex'), 53, '127.0.0.8')
        const [query] = (await once(resolver, 'message', { signal: AbortSignal.timeout(5_000) })) as [Buffer]
        assert.equal(query.subarray(2).toString('hex'), arrives.replaceAll(' ', ''))
      }
      client.close()
      await forwarder.close()
      resolver.close()
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

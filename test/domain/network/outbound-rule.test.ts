import assert from 'node:assert/strict'
import { test } from 'node:test'
import { judgeOutbound, parseNamedDestination } from '../../../src/domain/network/outbound-rule.ts'

function judge(
  url: string,
  address: string,
  { allowed = [] as readonly string[], own = [] as readonly string[] } = {},
) {
  const named = allowed.map(parseNamedDestination).filter((entry) => entry !== null)
  assert.equal(named.length, allowed.length)
  return judgeOutbound({ named, own }, new URL(url), address)
}

test('only public addresses of other machines are open, and only by HTTPS', () => {
  const closed4 =
    '0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 127.9.9.9 169.254.169.254 172.16.0.1 192.168.0.1 192.0.2.1 198.18.0.1 ' +
    '224.0.0.1 240.0.0.1 255.255.255.255 100.100.100.200'
  const closed6 =
    ':: ::1 ::7f00:1 ::ffff:10.0.0.1 ::ffff:7f00:1 64:ff9b::7f00:1 64:ff9b:1::1 2002:7f00:1:: 2001::1 2001:db8::1 ' +
    'fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 5f00::1'
  const closed = [...closed4.split(' '), ...closed6.split(' '), 'not an address']
  for (const address of closed) assert.equal(judge('https://a.example', address), null, address)
  for (const address of ['93.184.216.34', '2606:4700::1', '::ffff:93.184.216.34']) {
    assert.equal(judge('https://a.example', address), 'public', address)
    assert.equal(judge('http://a.example', address), null, address)
  }
  assert.equal(judge('https://a.example', '93.184.216.34', { own: ['10.0.0.1', '93.184.216.34'] }), null)
})

test('what the operator names is open: a host, a host with a port, an address, or a block', () => {
  const url = 'https://registry.lan:5000/'
  for (const entry of ['registry.lan', 'registry.lan:5000', '10.1.2.3', '10.0.0.0/8'])
    assert.equal(judge(url, '10.1.2.3', { allowed: [entry] }), 'named', entry)
  for (const entry of ['registry.lan:5001', 'lan', 'other.lan', '10.1.2.4', '10.1.2.3:5000', '11.0.0.0/8'])
    assert.equal(judge(url, '10.1.2.3', { allowed: [entry] }), null, entry)
  assert.equal(judge('https://registry.lan', '10.1.2.3', { allowed: ['registry.lan:443'] }), 'named')
  assert.equal(judge('http://registry.lan', '10.1.2.3', { allowed: ['registry.lan'] }), null)
  assert.equal(judge('http://[::1]:5000', '::1', { allowed: ['[::1]:5000'] }), 'named')
  assert.equal(judge('http://localhost:5000', '127.0.0.1', { allowed: ['localhost:5000'] }), 'named')
  for (const text of ['', '10.0.0.0/33', 'https://registry.lan', 'a b', 'registry.lan/x'])
    assert.equal(parseNamedDestination(text), null, text)
})

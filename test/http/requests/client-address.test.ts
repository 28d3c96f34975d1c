import assert from 'node:assert/strict'
import type { IncomingMessage } from 'node:http'
import { test } from 'node:test'
import { cidr } from '../../../src/domain/cidr.ts'
import { makeClientAddresses } from '../../../src/http/requests/client-address.ts'

const clients = makeClientAddresses(['127.0.0.1', '10.0.0.0/8', 'fd00::/8'].map(cidr))

function addressOf(remoteAddress: string | undefined, forwarded?: string): string | undefined {
  const headers = forwarded === undefined ? {} : { 'x-forwarded-for': forwarded }
  return clients.of({ socket: { remoteAddress }, headers } as IncomingMessage) // the only fields that are read
}

test('the client of a trusted proxy is the last forwarded address that is no trusted proxy itself', () => {
  assert.equal(addressOf('127.0.0.1', '192.0.2.7'), '192.0.2.7')
  assert.equal(addressOf('::ffff:127.0.0.1', '192.0.2.7, 10.1.2.3'), '192.0.2.7')
  assert.equal(addressOf('fd00::1', '198.51.100.1,2001:db8::5 , fd00::9'), '2001:db8::5')
  assert.equal(addressOf('10.0.0.1', '10.0.0.2'), '10.0.0.2')
})

test('what a client writes into the header itself counts neither before its real address nor through an untrusted peer', () => {
  assert.equal(addressOf('127.0.0.1', '203.0.113.1, 192.0.2.7'), '192.0.2.7')
  assert.equal(addressOf('127.0.0.1', '127.0.0.1, 10.0.0.1, 192.0.2.7'), '192.0.2.7')
  for (const peer of ['127.0.0.2', '192.0.2.9', '::1', '::ffff:192.0.2.9'])
    assert.equal(addressOf(peer, '203.0.113.1'), peer)
  assert.equal(addressOf(undefined, '203.0.113.1'), undefined)
})

test('a header that a trusted proxy did not fill with addresses leaves the address of the last known hop', () => {
  for (const text of [undefined, '', ',', 'unknown', '192.0.2.0/24', '192.0.2.7:1234', '[2001:db8::5]', '192.0.2.7,'])
    assert.equal(addressOf('127.0.0.1', text), '127.0.0.1')
  assert.equal(addressOf('127.0.0.1', 'garbage, 10.0.0.5'), '10.0.0.5')
})

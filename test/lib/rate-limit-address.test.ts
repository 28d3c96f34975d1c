import assert from 'node:assert/strict'
import { test } from 'node:test'
import { rateLimitAddress } from '../../src/lib/rate-limit-address.ts'

test('an IPv4 address counts by itself and an IPv6 address by its /64, however it is written', () => {
  const cases: readonly (readonly [string | undefined, string])[] = [
    ['192.0.2.7', '192.0.2.7'],
    ['::ffff:192.0.2.7', '192.0.2.7'],
    ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2::/64'],
    ['2001:db8:1:2::9', '2001:db8:1:2::/64'],
    ['2001:db8::9', '2001:db8:0:0::/64'],
    ['fe80::1%eth0', 'fe80:0:0:0::/64'],
    ['::1', '0:0:0:0::/64'],
    [undefined, 'unknown'],
  ]
  for (const [address, counted] of cases) assert.equal(rateLimitAddress(address), counted)
})

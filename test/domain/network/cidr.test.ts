import assert from 'node:assert/strict'
import { test } from 'node:test'
import { cidr, contains, dropContained, formatIpv4Cidr, parseCidr } from '../../../src/domain/cidr.ts'
import { MALFORMED_ADDRESS_BLOCKS } from '../../support/spec-inputs.ts'

test('a malformed address block does not parse', () => {
  for (const block of MALFORMED_ADDRESS_BLOCKS) assert.equal(parseCidr(block), null, block)
})

test('addresses parse in every form that people write, with host bits cleared', () => {
  assert.deepEqual(cidr('10.1.2.3/8'), cidr('10.0.0.0/8'))
  assert.equal(formatIpv4Cidr(cidr('192.168.7.9/20')), '192.168.0.0/20')
  assert.deepEqual(cidr('FD00::0:1'), cidr('fd00:0:0:0:0:0:0:1/128'))
  assert.deepEqual(cidr('::ffff:10.0.0.1'), cidr('::ffff:a00:1'))
  assert.equal(cidr('::').first, 0n)
  assert.equal(cidr('1::').first, 1n << 112n)
  assert.equal(contains(cidr('0.0.0.0/0'), cidr('::1')), false)
  assert.equal(parseCidr('01.2.3.4'), null)
})

test('dropping contained blocks keeps every address', () => {
  const kept = dropContained(['10.1.0.0/16', '10.0.0.0/8', '9.0.0.0/8', '10.0.0.0/8'].map(cidr))
  assert.deepEqual(kept.map(formatIpv4Cidr), ['9.0.0.0/8', '10.0.0.0/8'])
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { cidr, contains, formatIpv4Cidr, parseCidr, dropContained } from '../../../src/domain/network/cidr.ts'
import { findPolicyRefusals } from '../../../src/domain/network/network-policy-check.ts'
import type { Rule } from '../../../src/domain/spec/spec.ts'
import { DNS_RULE, networkWith } from '../../support/networks.ts'

function fieldsOf(rule: Partial<Rule>): readonly string[] {
  const { policy } = networkWith([{}, rule])
  return policy === null ? [] : findPolicyRefusals(policy, 'network.policy').map(({ field }) => field)
}

test('each fault of a rule is refused with the path of its field', () => {
  for (const block of [
    '10.0.0.0/33',
    '10.0.0',
    'example.com',
    '',
    'fe80::1%eth0',
    '10.0.0.0/8/8',
    '10.0.0.0/-1',
    '::/129',
  ]) {
    assert.deepEqual(fieldsOf({ destination: { cidr: block } }), ['network.policy.rules[1].destination.cidr'], block)
  }
  assert.deepEqual(
    fieldsOf({
      ports: [
        { start: 1, end: 2 },
        { start: 3, end: 2 },
      ],
    }),
    ['network.policy.rules[1].ports[1]'],
  )
  assert.deepEqual(fieldsOf({ ports: [{ start: 1, end: 65_536 }] }), ['network.policy.rules[1].ports[0]'])
  assert.deepEqual(fieldsOf({ ports: [{ start: 1, end: 2 }], protocols: ['tcp', 'icmpv4'] }), [
    'network.policy.rules[1].protocols',
  ])
  assert.deepEqual(fieldsOf({ ports: [{ start: 0, end: 65_535 }], protocols: ['tcp', 'udp'] }), [])
})

test('addresses are read in every form that people write, with host bits cleared', () => {
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

/** As the public client sends them: its presets, and rules that its builder and its command line make. */
const FROM_CLIENTS: readonly (readonly Partial<Rule>[])[] = [
  [],
  [DNS_RULE],
  [DNS_RULE, { destination: { group: 'public' } }],
  [{ destination: { group: 'public' } }, DNS_RULE, { destination: { group: 'private' } }],
  [{ destination: { cidr: 'fd00::/8' }, action: 'deny' }],
  [{ destination: { cidr: '192.168.0.0/16' }, direction: 'ingress' }],
  [{ destination: { domain: 'example.com' }, protocols: ['tcp', 'udp'], ports: [{ start: 8000, end: 9000 }] }],
]

test('the policies that real clients send are accepted', () => {
  for (const rules of FROM_CLIENTS) {
    const { policy } = networkWith(rules, { default_ingress: 'allow' })
    assert.deepEqual(policy === null ? null : findPolicyRefusals(policy, 'network.policy'), [])
  }
})

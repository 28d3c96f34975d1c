import assert from 'node:assert/strict'
import { test } from 'node:test'
import { allowsQuery } from '../../../src/domain/network/judge-query.ts'
import { DEFAULT_POLICY } from '../../../src/domain/network/network-policy.ts'
import type { NetworkPolicy, Rule } from '../../../src/domain/spec/spec.ts'
import { DNS_RULE, networkWith } from '../../support/networks.ts'

const policy = (rules: readonly Partial<Rule>[], more: Partial<NetworkPolicy> = {}): NetworkPolicy =>
  networkWith(rules, more).policy ?? DEFAULT_POLICY
const HTTPS = { protocols: ['tcp'], ports: [{ start: 443, end: 443 }] } as const

test('a name may be looked up if a rule by name, for DNS or for all addresses allows it', () => {
  const named = policy([{ destination: { domain: 'a.test' }, ...HTTPS }])
  assert.deepEqual([allowsQuery(named, 'a.test'), allowsQuery(named, 'b.test')], [true, false])
  assert.ok(allowsQuery(policy([DNS_RULE]), 'b.test'))
  assert.ok(allowsQuery(policy([{ destination: 'any' }]), 'b.test'))
  assert.ok(!allowsQuery(policy([{ destination: 'any', ...HTTPS }]), 'b.test'))
  assert.ok(!allowsQuery(policy([{ destination: { cidr: '0.0.0.0/0' } }]), 'b.test'), 'an address is no name')
  assert.ok(allowsQuery(policy([], { default_egress: 'allow' }), 'b.test'))
})

test('a denied name does not exist, unless it is denied for some ports alone', () => {
  const deny = { destination: { domain_suffix: 'a.test' }, action: 'deny' } as const
  const open = { default_egress: 'allow' } as const
  assert.ok(!allowsQuery(policy([deny], open), 'x.a.test'))
  assert.ok(allowsQuery(policy([{ ...deny, ...HTTPS }], open), 'x.a.test'))
  assert.ok(allowsQuery(policy([{ ...deny, direction: 'ingress' }], open), 'x.a.test'))
})

import fc from 'fast-check'
import {
  DESTINATION_GROUPS,
  PROTOCOLS,
  type Action,
  type NetworkPolicy,
  type Rule,
} from '../../src/domain/spec/spec.ts'

/** The gateway of a sandbox. */
export const GATEWAY = '10.209.0.5'
/** An address of each kind. */
// prettier-ignore
export const SAMPLE_ADDRESSES = [
  '1.1.1.1', '44.0.113.10', '44.0.113.12', '9.9.9.9', '10.1.2.3', '172.16.0.1', '172.32.0.1', '192.168.1.1',
  '100.64.0.1', '100.100.100.200', '100.128.0.1', '127.0.0.1', '169.254.1.1', '169.254.169.254', '224.0.0.1',
  '255.255.255.255', '0.0.0.0', '192.0.2.1', '198.18.0.1', '203.0.113.9', '240.0.0.1', GATEWAY, '10.209.0.6',
  '2606:4700::1111', '::1', 'fe80::1', 'fc00::1', 'fd00:ec2::254', 'fd12::9', 'ff02::1', '2001:db8::1', '2002::1',
] as const
const BLOCKS = [
  ...SAMPLE_ADDRESSES,
  '0.0.0.0/0',
  '10.0.0.0/8',
  '44.0.0.0/8',
  '169.254.0.0/16',
  '::/0',
  'fd00::/8',
] as const

const action = fc.constantFrom<Action>('allow', 'deny')
/** A port that rules have at an end. */
export const port = fc.constantFrom(0, 22, 53, 80, 443, 8080, 65_535)
const range = fc.tuple(port, port).map(([a, b]) => ({ start: Math.min(a, b), end: Math.max(a, b) }))
const destination = fc.oneof(
  fc.constant('any' as const),
  fc.constantFrom(...BLOCKS).map((block) => ({ cidr: block })),
  fc.constantFrom(...DESTINATION_GROUPS).map((group) => ({ group })),
)
const rule: fc.Arbitrary<Rule> = fc.record({
  direction: fc.constantFrom('egress' as const, 'ingress' as const, 'any' as const),
  destination,
  action,
  ports: fc.array(range, { maxLength: 2 }),
  protocols: fc.subarray([...PROTOCOLS]),
})
/** A policy of a few rules, by address alone. */
export const policy: fc.Arbitrary<NetworkPolicy> = fc.record({
  default_egress: action,
  default_ingress: action,
  rules: fc.array(rule, { maxLength: 8 }),
})

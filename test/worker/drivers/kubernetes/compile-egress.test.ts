import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { cidr, contains } from '../../../../src/domain/cidr.ts'
import { compilePolicy, decidePacket, type PacketRule } from '../../../../src/domain/network/network-policy.ts'
import type { NetworkPolicy, Protocol } from '../../../../src/domain/spec/spec.ts'
import {
  compileEgress,
  RESOLVER,
  type EgressRule,
} from '../../../../src/worker/drivers/kubernetes/network/compile-egress.ts'
import { policy, port, SAMPLE_ADDRESSES } from '../../../support/arbitrary-policy.ts'

const HARD_DENY = ['10.0.0.0/8', '44.0.113.12'].map(cidr)

function compiled(given: NetworkPolicy | null): readonly PacketRule[] {
  return compilePolicy(given, { gateway: RESOLVER, hardDeny: HARD_DENY }).egress
}

/** Whether a NetworkPolicy allows what it should: its rules add up. */
function allows(rules: readonly EgressRule[], address: string, protocol: Protocol, at: number): boolean {
  return rules.some(({ to, ports }) => {
    const isPeer = to.some((peer) => {
      if (!('ipBlock' in peer)) return address === '0.0.0.0'
      const { cidr: block, except = [] } = peer.ipBlock as {
        readonly cidr: string
        readonly except?: readonly string[]
      }
      const isIn = (one: string): boolean => contains(cidr(one), cidr(address))
      return address !== '0.0.0.0' && isIn(block) && !except.some(isIn)
    })
    const isPort = ports?.some(
      (one) =>
        one.protocol.toLowerCase() === protocol &&
        (one.port === undefined || (one.port <= at && at <= (one.endPort ?? one.port))),
    )
    return isPeer && (isPort ?? true)
  })
}

test('a NetworkPolicy allows exactly what the ordered rules of a policy allow to IPv4 addresses, or says that it allows more', () => {
  const addresses = SAMPLE_ADDRESSES.filter((address) => address.includes('.'))
  const wanted = fc.record({
    address: fc.constantFrom(...addresses),
    protocol: fc.constantFrom('tcp' as const, 'udp' as const, 'icmpv4' as const),
    at: port.filter((one) => one > 0),
  })
  let expressed = 0
  fc.assert(
    fc.property(policy, fc.array(wanted, { minLength: 20, maxLength: 20 }), (given, packets) => {
      const ordered = compiled(given)
      const { egress, isExact } = compileEgress(ordered)
      if (isExact) expressed += 1
      for (const { address, protocol, at } of packets) {
        const peer = cidr(address)
        const decided = decidePacket(ordered, { peer, protocol, port: protocol === 'icmpv4' ? null : at })
        const isAllowed = allows(egress, address, protocol, at)
        // One that is not exact allows more, and never less.
        if (isExact || decided === 'allow')
          assert.equal(isAllowed, decided === 'allow', `${protocol} ${address} ${String(at)}`)
      }
    }),
  )
  assert.ok(expressed > 0)
})

test('the default policy allows names and public addresses', () => {
  const { egress: rules } = compileEgress(compiled(null))
  assert.deepEqual(rules[0]?.ports, [
    { protocol: 'TCP', port: 53 },
    { protocol: 'UDP', port: 53 },
  ])
  assert.equal(allows(rules, '1.1.1.1', 'tcp', 443), true)
  assert.equal(allows(rules, '1.1.1.1', 'icmpv4', 0), true)
  for (const address of ['10.96.0.1', '192.168.1.1', '169.254.169.254', '100.64.0.1', '44.0.113.12'])
    assert.equal(allows(rules, address, 'tcp', 443), false, address)
  assert.equal(rules.length, 2)
})

test('a port that is denied where ICMP is allowed can not be expressed, and can once the rules name TCP and UDP', () => {
  const deny = {
    direction: 'egress',
    destination: 'any',
    action: 'deny',
    ports: [{ start: 25, end: 25 }],
    protocols: [],
  } as const
  const allow = { direction: 'egress', destination: { group: 'public' }, action: 'allow', ports: [] } as const
  const policyOf = (protocols: readonly Protocol[]): NetworkPolicy => ({
    default_egress: 'deny',
    default_ingress: 'deny',
    rules: [deny, { ...allow, protocols }],
  })
  assert.equal(compileEgress(compiled(policyOf([]))).isExact, false)
  const { egress: rules, isExact } = compileEgress(compiled(policyOf(['tcp', 'udp'])))
  assert.ok(isExact)
  assert.deepEqual(
    [24, 25, 26, 65_535].map((at) => allows(rules, '1.1.1.1', 'tcp', at)),
    [true, false, true, true],
  )
})

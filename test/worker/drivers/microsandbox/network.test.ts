import assert from 'node:assert/strict'
import { test } from 'node:test'
import { cidr, contains } from '../../../../src/domain/cidr.ts'
import { groupAddresses } from '../../../../src/domain/network/network-groups.ts'
import { compilePolicy, decidePacket, DEFAULT_POLICY } from '../../../../src/domain/network/network-policy.ts'
import type { Action, NetworkPolicy, Protocol, Rule } from '../../../../src/domain/spec/spec.ts'
import { makeVmNetwork } from '../../../../src/worker/drivers/microsandbox/vm-network.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'

const GATEWAY = cidr('172.16.0.1')
const HOST = '192.0.2.9'

/**
 * Decides about an outgoing packet as the microsandbox runtime does: by the first rule that matches, or else by the
 * default action (policy/types.rs, 0.6.14).
 */
function decide(policy: NetworkPolicy, address: string, protocol: Protocol, port: number | null): Action {
  const peer = cidr(address)
  const covers = ({ destination }: Rule): boolean => {
    if (destination === 'any') return true
    if ('cidr' in destination) return contains(cidr(destination.cidr), peer)
    if (!('group' in destination)) return false
    const { within, except } = groupAddresses(destination.group, GATEWAY)
    return within.some((block) => contains(block, peer)) && !except.some((block) => contains(block, peer))
  }
  const rule = policy.rules.find(
    (one) =>
      one.direction !== 'ingress' &&
      covers(one) &&
      (one.protocols.length === 0 || one.protocols.includes(protocol)) &&
      (one.ports.length === 0 || (port !== null && one.ports.some(({ start, end }) => start <= port && port <= end))),
  )
  return rule?.action ?? policy.default_egress
}

const rule = (destination: Rule['destination'], action: Action, more: Partial<Rule> = {}): Rule => ({
  direction: 'egress',
  destination,
  action,
  ports: [],
  protocols: [],
  ...more,
})
const policy = (default_egress: Action, ...rules: readonly Rule[]): NetworkPolicy => ({
  default_egress,
  default_ingress: 'deny',
  rules,
})

const POLICIES: Readonly<Record<string, NetworkPolicy>> = {
  'the default': DEFAULT_POLICY,
  'allow all': policy('allow'),
  'allow any': policy('deny', rule('any', 'allow')),
  'allow the host': policy('deny', rule({ group: 'host' }, 'allow')),
  'deny all, then allow metadata': policy('allow', rule('any', 'deny'), rule({ group: 'metadata' }, 'allow')),
  'allow metadata by name': policy('deny', rule({ cidr: '169.254.169.254/32' }, 'allow')),
  'allow a wide block': policy('deny', rule({ cidr: '169.254.0.0/16' }, 'allow')),
  'allow metadata, then any': policy('deny', rule({ group: 'metadata' }, 'allow'), rule('any', 'allow')),
  'deny a wide block, allow metadata': policy(
    'deny',
    rule({ cidr: '0.0.0.0/0' }, 'deny', { protocols: ['tcp'], ports: [{ start: 80, end: 80 }] }),
    rule({ group: 'metadata' }, 'allow', { direction: 'any' }),
  ),
  'allow private': policy('deny', rule({ group: 'private' }, 'allow')),
  'allow link-local': policy('allow', rule({ group: 'link_local' }, 'deny')),
}

const ADDRESSES = ['172.16.0.1', HOST, '169.254.169.254', '100.100.100.200', '169.254.7.7', '10.1.2.3', '8.8.8.8']
const PACKETS: readonly (readonly [Protocol, number | null])[] = [
  ['tcp', 80],
  ['tcp', 53],
  ['udp', 53],
  ['udp', 4000],
  ['icmpv4', null],
]

test('a policy allows and denies the same packets for a microVM as for a container', () => {
  for (const [name, one] of Object.entries(POLICIES)) {
    const spec = { ...DEFAULT_SPEC_FOR_TESTS.network, enabled: true, policy: one }
    const planned = makeVmNetwork(spec, [cidr(HOST)])?.policy
    const { egress } = compilePolicy(one, { gateway: GATEWAY, hardDeny: [cidr(HOST)] })
    assert.ok(planned)
    for (const address of ADDRESSES) {
      for (const [protocol, port] of PACKETS) {
        const expected = decidePacket(egress, { peer: cidr(address), protocol, port })
        assert.equal(
          decide(planned, address, protocol, port),
          expected,
          `${name}: ${protocol} ${address}:${String(port)}`,
        )
      }
    }
  }
})

test('no policy allows the machine’s loopback, from which the runtime connects', () => {
  for (const one of Object.values(POLICIES)) {
    const planned = makeVmNetwork({ ...DEFAULT_SPEC_FOR_TESTS.network, enabled: true, policy: one }, [])?.policy
    assert.ok(planned)
    for (const address of ['127.0.0.1', '127.8.8.8', '::1']) assert.equal(decide(planned, address, 'tcp', 80), 'deny')
  }
})

test('a sandbox without a policy gets the contract’s default, and one without a network gets none', () => {
  const { network } = DEFAULT_SPEC_FOR_TESTS
  const planned = makeVmNetwork({ ...network, enabled: true }, [])
  assert.deepEqual(planned?.policy.rules.slice(-DEFAULT_POLICY.rules.length), DEFAULT_POLICY.rules)
  assert.equal(makeVmNetwork({ ...network, enabled: false }, []), null)
})

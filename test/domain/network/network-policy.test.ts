import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { cidr, contains, parseCidr, type Cidr } from '../../../src/domain/cidr.ts'
import { METADATA_CIDRS, SPECIAL_CIDRS } from '../../../src/domain/network/network-groups.ts'
import { compilePolicy, decidePacket, DEFAULT_POLICY, type Packet } from '../../../src/domain/network/network-policy.ts'
import {
  DESTINATION_GROUPS,
  PROTOCOLS,
  type Action,
  type NetworkPolicy,
  type NetworkSpec,
  type Rule,
} from '../../../src/domain/spec/spec.ts'
import { requiredAbilities } from '../../../src/domain/spec/required-abilities.ts'
import { GATEWAY, policy, port, SAMPLE_ADDRESSES } from '../../support/arbitrary-policy.ts'
import { DEFAULT_NETWORK, networkWith } from '../../support/networks.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'

const HARD_DENY = ['10.209.0.0/16', '44.0.113.12/32', 'fd12::/16']
const environment = { gateway: cidr(GATEWAY), hardDeny: HARD_DENY.map(cidr) }

const packet: fc.Arbitrary<Packet> = fc
  .record({ peer: fc.constantFrom(...SAMPLE_ADDRESSES).map(cidr), protocol: fc.constantFrom(...PROTOCOLS), port })
  .map((made) => ({ ...made, port: made.protocol === 'tcp' || made.protocol === 'udp' ? made.port : null }))

test('a compiled policy decides about every packet like an evaluation of its rules one by one', () => {
  fc.assert(
    fc.property(policy, packet, fc.constantFrom('egress', 'ingress'), (given, seen, direction) => {
      assert.equal(
        decidePacket(compilePolicy(given, environment)[direction], seen),
        readOneByOne(given, seen, direction),
      )
    }),
    { numRuns: 3_000 },
  )
})

test('no policy allows what the operator denies, and of the gateway only DNS', () => {
  fc.assert(
    fc.property(policy, packet, (given, seen) => {
      const isGateway = contains(environment.gateway, seen.peer)
      fc.pre(isGateway ? seen.port !== 53 : environment.hardDeny.some((block) => contains(block, seen.peer)))
      assert.equal(decidePacket(compilePolicy(given, environment).egress, seen), 'deny')
    }),
  )
})

test('no policy allows a metadata address without naming it', () => {
  fc.assert(
    fc.property(policy, packet, (given, seen) => {
      fc.pre(
        METADATA_CIDRS.some((address) => contains(address, seen.peer)) &&
          !given.rules.some(({ destination: d }) => names(d)),
      )
      assert.equal(decidePacket(compilePolicy(given, environment).egress, seen), 'deny')
    }),
  )
})

test('every address is in at most one group, and no special address is in the group `public`', () => {
  const isIn = (address: string, group: (typeof DESTINATION_GROUPS)[number]): boolean => {
    const { egress } = compilePolicy(networkWith([{ destination: { group }, ports: [] }]).policy, {
      ...environment,
      hardDeny: [],
    })
    return decidePacket(egress, { peer: cidr(address), protocol: 'tcp', port: 53 }) === 'allow'
  }
  for (const address of SAMPLE_ADDRESSES) {
    const groups = DESTINATION_GROUPS.filter((group) => isIn(address, group))
    assert.ok(groups.length <= 1, `${address} is in ${groups.join(' and ')}`)
    const isSpecial = SPECIAL_CIDRS.some((block) => contains(block, cidr(address)))
    assert.equal(groups[0] === 'public', !isSpecial, `${address} is ${groups.join()}`)
  }
})

test('without a policy, egress to public addresses and DNS is allowed, and all other traffic is denied in both directions', () => {
  const { egress, ingress } = compilePolicy(null, environment)
  assert.deepEqual(compilePolicy(DEFAULT_POLICY, environment), { egress, ingress })
  for (const address of SAMPLE_ADDRESSES) {
    const peer = cidr(address)
    const isHardDenied = environment.hardDeny.some((block) => contains(block, peer)) && address !== GATEWAY
    const isOpen = !SPECIAL_CIDRS.some((block) => contains(block, peer)) && !isHardDenied
    assert.equal(decidePacket(egress, { peer, protocol: 'tcp', port: 443 }), isOpen ? 'allow' : 'deny', address)
    assert.equal(decidePacket(ingress, { peer, protocol: 'tcp', port: 443 }), 'deny')
  }
  assert.equal(decidePacket(egress, { peer: environment.gateway, protocol: 'udp', port: 53 }), 'allow')
})

test('a rule that names a domain needs the ability to judge names', () => {
  const spec = networkWith([{ destination: { domain_suffix: 'example.com' } }])
  assert.deepEqual(abilitiesOf(spec), ['network_policy', 'network_domains'])
})

test('an allowed name needs a DNS answer and the same claim; a denied one needs one of them', () => {
  const packet = { peer: cidr('44.0.113.10'), protocol: 'tcp', port: 443 } as const
  const decide = (rule: Partial<Rule>, tied: readonly string[], claimed: string | null): Action => {
    const { policy } = networkWith([{ destination: { domain_suffix: 'a.test' }, ...rule }], {
      default_egress: rule.action === 'deny' ? 'allow' : 'deny',
    })
    return decidePacket(compilePolicy(policy, environment).egress, { ...packet, names: { tied, claimed } })
  }
  const allow = (tied: readonly string[], claimed: string | null): Action => decide({}, tied, claimed)
  assert.deepEqual(
    [allow(['b.a.test'], null), allow(['a.test'], 'c.a.test'), allow([], 'a.test'), allow(['a.test'], 'x.test')],
    ['allow', 'allow', 'deny', 'deny'],
  )
  assert.equal(allow(['nota.test'], null), 'deny')
  const deny = (tied: readonly string[], claimed: string | null): Action => decide({ action: 'deny' }, tied, claimed)
  assert.deepEqual(
    [deny(['a.test'], null), deny([], 'a.test'), deny(['a.test'], 'x.test'), deny([], null)],
    ['deny', 'deny', 'allow', 'allow'],
  )
  assert.equal(decide({ ports: [{ start: 80, end: 80 }] }, ['a.test'], null), 'deny')
})

test('no name opens an address that the operator denies, a metadata address or the gateway', () => {
  const { policy } = networkWith([{ destination: { domain: 'a.test' } }])
  const { egress } = compilePolicy(policy, environment)
  for (const address of ['44.0.113.12', '169.254.169.254', '10.209.0.9', GATEWAY]) {
    const packet = {
      peer: cidr(address),
      protocol: 'tcp',
      port: 443,
      names: { tied: ['a.test'], claimed: 'a.test' },
    } as const
    assert.equal(decidePacket(egress, packet), 'deny', address)
  }
})

test('a network spec needs exactly the abilities of its fields, and the field `strict` needs none', () => {
  assert.deepEqual(abilitiesOf({ ...DEFAULT_NETWORK, strict: true }), [])
  assert.deepEqual(abilitiesOf({ ...DEFAULT_NETWORK, enabled: false, max_connections: 3 }), ['network_off'])
  assert.deepEqual(abilitiesOf({ ...DEFAULT_NETWORK, max_connections: 3 }), ['network_max_connections'])
  assert.deepEqual(abilitiesOf({ ...DEFAULT_NETWORK, max_udp_connections: 3 }), ['network_max_udp_connections'])
})

function abilitiesOf(network: NetworkSpec): readonly string[] {
  return requiredAbilities({ ...PLAIN_SPEC, network }).map(({ ability }) => ability)
}

/**
 * Decides about a packet by the first rule that matches, in the simplest way: with addresses as text and groups as a
 * list.
 */
function readOneByOne(given: NetworkPolicy, seen: Packet, direction: 'egress' | 'ingress'): Action {
  const isGateway = contains(environment.gateway, seen.peer)
  if (!isGateway && environment.hardDeny.some((block) => contains(block, seen.peer))) return 'deny'
  if (direction === 'egress' && isGateway && !(seen.port === 53)) return 'deny'
  for (const candidate of given.rules) {
    if (candidate.direction !== 'any' && candidate.direction !== direction) continue
    if (candidate.protocols.length > 0 && !candidate.protocols.includes(seen.protocol)) continue
    const isInPorts = candidate.ports.some(
      ({ start, end }) => seen.port !== null && start <= seen.port && seen.port <= end,
    )
    if (candidate.ports.length > 0 && !isInPorts) continue
    if (!isPeer(candidate, seen.peer, isGateway)) continue
    return candidate.action
  }
  const byDefault = direction === 'egress' ? given.default_egress : given.default_ingress
  return byDefault === 'allow' && !isMetadata(seen.peer) ? 'allow' : 'deny'
}

function isPeer({ destination: wanted, action: taken }: Rule, peer: Cidr, isGateway: boolean): boolean {
  const isShielded = taken === 'allow' && isMetadata(peer)
  if (wanted === 'any') return !isShielded
  if ('cidr' in wanted) return contains(cidr(wanted.cidr), peer) && (!isShielded || names(wanted))
  if (!('group' in wanted)) throw new Error('no domains here')
  return wanted.group === groupOf(peer, isGateway)
}

function groupOf(peer: Cidr, isGateway: boolean): string | null {
  const lies = (...blocks: readonly string[]): boolean => blocks.some((block) => contains(cidr(block), peer))
  if (isGateway) return 'host'
  if (isMetadata(peer)) return 'metadata'
  if (lies('127.0.0.0/8', '::1')) return 'loopback'
  if (lies('10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', '100.64.0.0/10', 'fc00::/7')) return 'private'
  if (lies('169.254.0.0/16', 'fe80::/10')) return 'link_local'
  if (lies('224.0.0.0/4', '255.255.255.255', 'ff00::/8')) return 'multicast'
  if (lies('0.0.0.0/8', '192.0.2.0/24', '198.18.0.0/15', '203.0.113.0/24', '240.0.0.0/4', '2001:db8::/32', '2002::/16'))
    return null
  return peer.family === 4 || lies('2000::/3') ? 'public' : null
}

function isMetadata(peer: Cidr): boolean {
  return METADATA_CIDRS.some((address) => contains(address, peer))
}

function names(wanted: Rule['destination']): boolean {
  if (wanted === 'any') return false
  if ('group' in wanted) return wanted.group === 'metadata'
  const block = 'cidr' in wanted ? parseCidr(wanted.cidr) : null
  return block !== null && isMetadata(block)
}

import { parseCidr } from './cidr.ts'
import { PORT_MAX, RULE_PORTS_MAX, RULES_MAX } from '../requests/request-bounds.ts'
import { describeSeen, type Refusal } from '../spec/refusal.ts'
import type { NetworkPolicy, Rule } from '../spec/spec.ts'

/**
 * What is wrong with a policy whose shape is right, each with the path of its field beneath `path` (such as
 * `network.policy`): bad address blocks, port ranges that end before they start, ports beside ICMP, too many rules.
 */
export function findPolicyRefusals(policy: NetworkPolicy, path: string): readonly Refusal[] {
  if (policy.rules.length > RULES_MAX) {
    return [refusal(`${path}.rules`, policy.rules, `at most ${String(RULES_MAX)} rules`)]
  }
  return policy.rules.flatMap((rule, index) => checkRule(rule, `${path}.rules[${String(index)}]`))
}

function checkRule(rule: Rule, path: string): readonly Refusal[] {
  const found: Refusal[] = []
  const { destination, ports, protocols } = rule
  if (destination !== 'any' && 'cidr' in destination && parseCidr(destination.cidr) === null) {
    found.push(
      refusal(
        `${path}.destination.cidr`,
        destination.cidr,
        'an IP address or a CIDR block, such as 10.0.0.0/8 or fd00::/8',
      ),
    )
  }
  if (ports.length > RULE_PORTS_MAX) {
    found.push(refusal(`${path}.ports`, ports, `at most ${String(RULE_PORTS_MAX)} ranges`))
  }
  for (const [index, { start, end }] of ports.entries()) {
    if (start > end || end > PORT_MAX) {
      const seen = `${String(start)}-${String(end)}`
      found.push(refusal(`${path}.ports[${String(index)}]`, seen, `0 to ${String(PORT_MAX)}, start not above end`))
    }
  }
  if (ports.length > 0 && protocols.some((protocol) => protocol === 'icmpv4' || protocol === 'icmpv6')) {
    found.push(
      refusal(`${path}.protocols`, protocols.join(', '), 'tcp and udp in a rule that has ports: ICMP has none'),
    )
  }
  return found
}

function refusal(field: string, seen: unknown, accepted: string): Refusal {
  return { code: 'invalid_sandbox_config', field, seen: describeSeen(seen), accepted }
}

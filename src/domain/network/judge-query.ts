import type { NetworkPolicy, Rule } from '../spec/spec.ts'
import { hasName, nameOf } from './name-pattern.ts'

const DNS_PORT = 53

/**
 * Whether a sandbox whose policy has rules by name may look a name up. A rule by name, for `any` or for the group `host`
 * decides; rules for other addresses can't match. A name that is denied for some ports or protocols alone may be looked up.
 */
export function allowsQuery(policy: NetworkPolicy, name: string): boolean {
  const rule = policy.rules.find((one) => one.direction !== 'ingress' && decides(one, name))
  return (rule?.action ?? policy.default_egress) === 'allow'
}

function decides(rule: Rule, name: string): boolean {
  const pattern = nameOf(rule.destination)
  if (pattern !== null) return hasName(pattern, name) && (rule.action === 'allow' || isForAll(rule))
  const isHost = rule.destination === 'any' || ('group' in rule.destination && rule.destination.group === 'host')
  return isHost && isForDns(rule)
}

function isForAll({ ports, protocols }: Rule): boolean {
  return ports.length === 0 && protocols.length === 0
}

function isForDns({ ports, protocols }: Rule): boolean {
  const hasPort = ports.length === 0 || ports.some(({ start, end }) => start <= DNS_PORT && DNS_PORT <= end)
  return hasPort && (protocols.length === 0 || protocols.includes('udp') || protocols.includes('tcp'))
}

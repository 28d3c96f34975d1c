import { isDeepStrictEqual } from 'node:util'
import { snakeCase } from '../casing.ts'
import { parseCidr } from '../cidr.ts'
import { normalizeDns } from './dns-settings.ts'
import { normalizeInterface } from './network-interface.ts'
import type { NormalizedSecrets } from './normalize-secrets.ts'
import type { NormalizedTls } from './normalize-tls.ts'
import { normalizePorts } from './published-ports.ts'
import { describeSeen, type Refuse } from '../refusal.ts'
import { NO_SECRET_DEFAULTS } from './secrets.ts'
import {
  ACTIONS, DESTINATION_GROUPS, DIRECTIONS, PROTOCOLS, PROTOCOLS_WITH_PORTS, type Destination, type NetworkPolicy, type NetworkSpec, type Rule,
} from './spec.ts' // prettier-ignore
import type { DestinationInput, NetworkInput, PolicyInput, RuleInput } from './spec-input.ts'

/** Fills in the defaults of a network. A null policy stays null, which means the default policy. */
export function normalizeNetwork(
  input: NetworkInput,
  { secrets, defaults, tls }: NormalizedSecrets & Pick<NormalizedTls, 'tls'>,
  refuse: Refuse,
): NetworkSpec {
  const { enabled = true } = input
  const ports = normalizePorts(input.ports ?? [], { enabled }, refuse)
  const device = normalizeInterface(input.interface, refuse)
  const dns = normalizeDns(input.dns, refuse)
  return {
    enabled,
    strict: input.strict ?? false,
    max_connections: maxConnectionsOf(input, refuse),
    ...(typeof input.max_udp_connections === 'number' ? { max_udp_connections: input.max_udp_connections } : {}),
    policy: input.policy === undefined || input.policy === null ? null : normalizePolicy(input.policy, refuse),
    secrets,
    ...(isDeepStrictEqual(defaults, NO_SECRET_DEFAULTS) ? {} : { secret_defaults: defaults }),
    ...(input.trust_host_cas === true ? { trust_host_cas: true } : {}),
    ...(tls === null ? {} : { tls }),
    ...(device === null ? {} : { interface: device }),
    ...(dns === null ? {} : { dns }),
    ...(ports.length === 0 ? {} : { ports }),
  }
}

/** Clients have two names for one field. */
function maxConnectionsOf({ max_connections, max_tcp_connections }: NetworkInput, refuse: Refuse): number | null {
  const [one, other] = [max_connections ?? null, max_tcp_connections ?? null]
  if (one !== null && other !== null && one !== other)
    refuse({
      code: 'invalid_sandbox_config',
      field: 'network.max_tcp_connections',
      seen: String(other),
      accepted: `${String(one)} or nothing, because network.max_connections is the same field`,
    })
  return one ?? other
}

function normalizePolicy(input: PolicyInput, refuse: Refuse): NetworkPolicy {
  return {
    default_egress: snakeCase(ACTIONS, input.default_egress ?? 'deny'),
    default_ingress: snakeCase(ACTIONS, input.default_ingress ?? 'deny'),
    rules: (input.rules ?? []).map((rule, index) =>
      normalizeRule(rule, `network.policy.rules[${String(index)}]`, refuse),
    ),
  }
}

function normalizeRule(input: RuleInput, at: string, refuse: Refuse): Rule {
  const ports = input.ports ?? []
  ports.forEach(({ start, end }, index) => {
    if (start <= end) return
    const field = `${at}.ports[${String(index)}].end`
    refuse({ code: 'invalid_request', field, seen: String(end), accepted: `at least start, ${String(start)}` })
  })
  const protocols = (input.protocols ?? []).map((protocol) => snakeCase(PROTOCOLS, protocol))
  const isIcmpAlone = protocols.length > 0 && !PROTOCOLS_WITH_PORTS.some((one) => protocols.includes(one))
  if (ports.length > 0 && isIcmpAlone) {
    const accepted = 'an empty list, because ICMP has no ports; or tcp or udp among the protocols'
    refuse({ code: 'invalid_request', field: `${at}.ports`, seen: describeSeen(ports), accepted })
  }
  return {
    direction: snakeCase(DIRECTIONS, input.direction),
    destination: normalizeDestination(input.destination, `${at}.destination`, refuse),
    action: snakeCase(ACTIONS, input.action),
    ports: ports.map(({ start, end }) => ({ start, end })),
    protocols,
  }
}

function normalizeDestination(input: DestinationInput, at: string, refuse: Refuse): Destination {
  if (typeof input === 'string') return 'any'
  if (input.group !== undefined) return { group: snakeCase(DESTINATION_GROUPS, input.group) }
  if (input.cidr !== undefined) {
    if (parseCidr(input.cidr) === null) {
      const accepted = 'an IP address or a CIDR block, such as 10.0.0.0/8'
      refuse({ code: 'invalid_request', field: `${at}.cidr`, seen: describeSeen(input.cidr), accepted })
    }
    return { cidr: input.cidr }
  }
  if (input.domain !== undefined) return { domain: normalizeDomain(input.domain, `${at}.domain`, refuse) }
  return { domain_suffix: normalizeDomain(input.domain_suffix ?? '', `${at}.domain_suffix`, refuse) }
}

/** RFC 1035, section 2.3.4: 255 octets on the wire are 253 characters, and each label has at most 63. */
const DOMAIN_SHAPE = /^(?=.{1,253}$)[a-z0-9_](?:[a-z0-9_-]{0,62})(?:\.[a-z0-9_](?:[a-z0-9_-]{0,62}))*$/

function normalizeDomain(domain: string, field: string, refuse: Refuse): string {
  const normal = domain.toLowerCase().replace(/^\.|\.$/g, '')
  if (!DOMAIN_SHAPE.test(normal)) {
    refuse({
      code: 'invalid_request',
      field,
      seen: describeSeen(domain),
      accepted: 'a domain name, such as example.com',
    })
  }
  return normal
}

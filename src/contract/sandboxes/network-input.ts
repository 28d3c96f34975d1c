import { Type } from 'typebox'
import { PORT_MAX, RULES_MAX, RULE_PORTS_MAX } from '../../domain/requests/request-bounds.ts'
import { ACTIONS, DESTINATION_GROUPS, DIRECTIONS, PROTOCOLS } from '../../domain/spec/spec.ts'
import type { DestinationInput as Destination } from '../../domain/spec/spec-input.ts'
import { PUBLISHED_PORTS_MAX, PUBLISHED_PROTOCOLS } from '../../domain/spec/published-ports.ts'
import { NAMESERVERS_MAX, QUERY_TIMEOUT_MAX_MS } from '../../domain/spec/dns-settings.ts'
import {
  nullableComponent,
  requestObject,
  int32,
  int64,
  stringEnum,
  stringEnumSnakeOrPascal,
  nullable,
} from '../common.ts'
import { SecretsInput } from './secrets-input.ts'
import { TlsInput } from './tls-input.ts'
import { PortRange } from './spec-shared.ts'

/** The schemas of the network in a create request. */

const DestinationInput = Type.Unsafe<Destination>({
  title: 'DestinationInput',
  description: 'Any destination, or an object with exactly one of the listed keys.',
  anyOf: [
    {
      title: 'DestinationInputMatch',
      description: 'An object with exactly one key.',
      type: 'object',
      properties: {
        cidr: { type: 'string' },
        domain: { type: 'string' },
        domain_suffix: { type: 'string' },
        group: stringEnumSnakeOrPascal(DESTINATION_GROUPS),
      },
      additionalProperties: false,
      minProperties: 1,
      maxProperties: 1,
    },
    stringEnumSnakeOrPascal(['any'], { title: 'DestinationInputAny', description: 'Any destination.' }),
  ],
})

const RuleInput = requestObject(
  {
    direction: stringEnumSnakeOrPascal(DIRECTIONS),
    destination: DestinationInput,
    action: stringEnumSnakeOrPascal(ACTIONS),
    ports: Type.Optional(Type.Array(PortRange, { maxItems: RULE_PORTS_MAX })),
    protocols: Type.Optional(Type.Array(stringEnumSnakeOrPascal(PROTOCOLS), { maxItems: PROTOCOLS.length })),
  },
  {
    title: 'RuleInput',
    description: 'A rule of a network policy. Without ports or protocols, it applies to all of them.',
  },
)

const NetworkPolicyInput = requestObject(
  {
    default_egress: Type.Optional(stringEnumSnakeOrPascal(ACTIONS)),
    default_ingress: Type.Optional(stringEnumSnakeOrPascal(ACTIONS)),
    rules: Type.Optional(Type.Array(RuleInput, { maxItems: RULES_MAX })),
  },
  {
    title: 'NetworkPolicyInput',
    description:
      'Ordered rules: the first that matches in a direction decides. If none does, the default decides; it is `deny` if absent.',
  },
)

const DnsInput = requestObject(
  {
    nameservers: Type.Optional(Type.Array(Type.String(), { maxItems: NAMESERVERS_MAX })),
    query_timeout_ms: Type.Optional(int64({ maximum: QUERY_TIMEOUT_MAX_MS })),
    rebind_protection: Type.Optional(Type.Boolean()),
  },
  { title: 'DnsInput', description: 'How the names of the sandbox are resolved.' },
)

const InterfaceInput = requestObject(
  {
    ipv4_address: Type.Optional(nullable(Type.String())),
    ipv4_pool: Type.Optional(nullable(Type.String())),
    ipv6_address: Type.Optional(nullable(Type.String())),
    ipv6_pool: Type.Optional(nullable(Type.String())),
    mac: Type.Optional(nullable(Type.Array(int32(), { maxItems: 6 }))),
    mtu: Type.Optional(nullable(int32())),
  },
  {
    title: 'InterfaceInput',
    description: 'What the network device of the sandbox shows. Null: as the worker chooses.',
  },
)

const PublishedPortInput = requestObject(
  {
    host_port: Type.Optional(int32({ maximum: PORT_MAX })),
    guest_port: int32({ maximum: PORT_MAX }),
    host_bind: Type.Optional(Type.String()),
    protocol: Type.Optional(stringEnum(PUBLISHED_PROTOCOLS)),
  },
  {
    title: 'PublishedPortInput',
    description: 'A port of the sandbox to open on the machine of its worker. A host port of 0 means a free one.',
  },
)

export const NetworkInput = requestObject(
  {
    enabled: Type.Optional(Type.Boolean({ default: true })),
    strict: Type.Optional(
      Type.Boolean({ default: false, description: 'How domain rules treat traffic whose domain is unknown.' }),
    ),
    max_connections: Type.Optional(nullable(int32())),
    max_tcp_connections: Type.Optional(nullable(int32())),
    max_udp_connections: Type.Optional(nullable(int32())),
    policy: Type.Optional(nullableComponent(NetworkPolicyInput)),
    secrets: Type.Optional(nullableComponent(SecretsInput)),
    ports: Type.Optional(Type.Array(PublishedPortInput, { maxItems: PUBLISHED_PORTS_MAX })),
    trust_host_cas: Type.Optional(
      Type.Boolean({
        default: false,
        description: 'Whether programs trust the certificate authorities of the worker.',
      }),
    ),
    dns: Type.Optional(nullableComponent(DnsInput)),
    interface: Type.Optional(nullableComponent(InterfaceInput)),
    tls: Type.Optional(nullableComponent(TlsInput)),
  },
  {
    title: 'NetworkInput',
    description: 'The network of the sandbox. Without a policy it reaches public addresses and DNS, and nothing else.',
  },
)

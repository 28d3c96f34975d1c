import { Type } from 'typebox'
import { HOSTS_MAX, RULES_MAX, RULE_PORTS_MAX, SECRETS_MAX } from '../../domain/requests/request-bounds.ts'
import { ACTIONS, DESTINATION_GROUPS, DIRECTIONS, PROTOCOLS } from '../../domain/spec/spec.ts'
import type { DestinationInput as Destination } from '../../domain/spec/spec-input.ts'
import { nullableComponent, requestObject, int32, stringEnumSnakeOrPascal, nullable, taggedUnion } from '../common.ts'
import { PortRange, PublishedPort } from './spec-shared.ts'

/** The schemas of the network in a create request. */

const DestinationInput = Type.Unsafe<Destination>({
  title: 'DestinationInput',
  description: 'Any destination, or an object with exactly one of the listed keys.',
  anyOf: [
    {
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
    stringEnumSnakeOrPascal(['any']),
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

const HostPattern = taggedUnion(
  'type',
  [
    requestObject({ type: stringEnumSnakeOrPascal(['exact']), value: Type.String() }),
    requestObject({ type: stringEnumSnakeOrPascal(['wildcard']), value: Type.String() }),
    requestObject({ type: stringEnumSnakeOrPascal(['any']) }),
  ],
  { title: 'HostPattern', description: 'Hosts that a secret may be sent to.' },
)
const Hosts = Type.Array(HostPattern, { maxItems: HOSTS_MAX })

const ViolationAction = taggedUnion(
  'type',
  [
    requestObject({ type: stringEnumSnakeOrPascal(['block']) }),
    requestObject({ type: stringEnumSnakeOrPascal(['block_and_log']) }),
    requestObject({ type: stringEnumSnakeOrPascal(['block_and_terminate']) }),
    requestObject({ type: stringEnumSnakeOrPascal(['passthrough']), hosts: Hosts }),
  ],
  {
    title: 'ViolationAction',
    description:
      'What happens to a request that carries the placeholder of a secret to a host that may not get the secret.',
  },
)

const SecretSource = taggedUnion(
  'type',
  [
    requestObject({ type: stringEnumSnakeOrPascal(['env']), var: Type.String() }),
    requestObject({ type: stringEnumSnakeOrPascal(['store']), reference: Type.String() }),
  ],
  { title: 'SecretSource', description: 'Where the client stores the value. The value stays there.' },
)

const flag = Type.Optional(Type.Boolean())

const SecretInput = requestObject(
  {
    env_var: Type.String(),
    placeholder: Type.String(),
    value: Type.Optional(Type.String({ format: 'password' })),
    source: Type.Optional(nullableComponent(SecretSource)),
    allowed_hosts: Type.Optional(Hosts),
    injection: Type.Optional(requestObject({ headers: flag, basic_auth: flag, query_params: flag, body: flag })),
    on_violation: Type.Optional(nullableComponent(ViolationAction)),
    require_tls_identity: flag,
    substitution: Type.Optional(
      requestObject({ headers: flag, query: flag, body: flag }, { description: 'A later spelling of `injection`.' }),
    ),
    passthrough_hosts: Type.Optional(Hosts),
    violation_action: Type.Optional(nullableComponent(ViolationAction)),
  },
  { title: 'SecretInput', description: 'A secret that the sandbox sees only as a placeholder.' },
)

const SecretsInput = requestObject(
  {
    entries: Type.Optional(Type.Array(SecretInput, { maxItems: SECRETS_MAX })),
    on_violation: Type.Optional(ViolationAction),
    violation_action: Type.Optional(ViolationAction),
  },
  {
    title: 'SecretsInput',
    description: 'Secrets, and what happens when a secret would reach a host that may not get it.',
  },
)

/** The schema of a network field that no driver supports. It accepts only null. */
const notYet = Type.Optional(nullable(Type.Unsafe<object>({ type: 'object', additionalProperties: true })))

export const NetworkInput = requestObject(
  {
    enabled: Type.Optional(Type.Boolean({ default: true })),
    strict: Type.Optional(
      Type.Boolean({ default: false, description: 'How domain rules treat traffic whose domain is unknown.' }),
    ),
    max_connections: Type.Optional(nullable(int32())),
    policy: Type.Optional(nullableComponent(NetworkPolicyInput)),
    secrets: Type.Optional(nullableComponent(SecretsInput)),
    ports: Type.Optional(Type.Array(PublishedPort, { maxItems: RULE_PORTS_MAX })),
    trust_host_cas: Type.Optional(Type.Boolean({ default: false })),
    dns: notYet,
    interface: notYet,
    tls: notYet,
  },
  {
    title: 'NetworkInput',
    description: 'The network of the sandbox. Without a policy it reaches public addresses and DNS, and nothing else.',
  },
)

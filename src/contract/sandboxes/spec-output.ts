import { Type } from 'typebox'
import { eitherCasing, pascalCase } from '../../domain/casing.ts'
import {
  ACTIONS, DESTINATION_GROUPS, DIRECTIONS, DISK_IMAGE_FORMATS, HOST_PERMISSIONS, PROTOCOLS, RLIMIT_RESOURCES,
  SANDBOX_LOG_LEVELS, STAT_VIRTUALIZATIONS, type Destination,
} from '../../domain/spec/spec.ts' // prettier-ignore
import { PORT_MAX } from '../../domain/requests/request-bounds.ts'
import { PUBLISHED_PROTOCOLS } from '../../domain/spec/published-ports.ts'
import { VIOLATION_ACTIONS } from '../../domain/spec/secrets.ts'
import { nullableComponent, int32, int64, stringEnum, nullable, stringMap, taggedUnion } from '../common.ts'
import { TlsReply } from './tls-output.ts'
import { EnvVar, PortRange } from './spec-shared.ts'

/** The schemas of a sandbox's specification in replies. */

const DestinationReply = Type.Unsafe<Destination>({
  title: 'Destination',
  description:
    'What a rule matches: anything, an address block, a domain, a domain with its subdomains, or a group of addresses.',
  oneOf: [
    { title: 'DestinationAny', description: 'Any destination.', type: 'string', enum: ['any'] },
    ...(['cidr', 'domain', 'domain_suffix'] as const).map((key) => ({
      title: `Destination${pascalCase(key)}`,
      description: `A destination by \`${key}\`.`,
      type: 'object',
      properties: { [key]: { type: 'string' } },
      required: [key],
      additionalProperties: false,
    })),
    {
      title: 'DestinationGroup',
      description: 'A destination by `group`.',
      type: 'object',
      properties: { group: { type: 'string', enum: [...DESTINATION_GROUPS] } },
      required: ['group'],
      additionalProperties: false,
    },
  ],
})

const RuleReply = Type.Object(
  {
    direction: stringEnum(DIRECTIONS),
    destination: DestinationReply,
    action: stringEnum(ACTIONS),
    ports: Type.Array(PortRange),
    protocols: Type.Array(stringEnum(PROTOCOLS)),
  },
  { title: 'Rule', description: 'A rule of a network policy. Without ports or protocols, it applies to all of them.' },
)

const NetworkPolicyReply = Type.Object(
  { default_egress: stringEnum(ACTIONS), default_ingress: stringEnum(ACTIONS), rules: Type.Array(RuleReply) },
  {
    title: 'NetworkPolicy',
    description: 'Ordered rules: the first that matches in a direction decides. If none does, the default decides.',
  },
)

const LifecyclePolicyReply = Type.Object(
  {
    ephemeral: Type.Boolean({ description: 'Whether the sandbox is removed once it has ended.' }),
    idle_timeout_secs: nullable(int64({ description: 'Stops the sandbox after this many seconds without use.' })),
    max_duration_secs: nullable(int64({ description: 'Stops the sandbox after it has run for this many seconds.' })),
  },
  { title: 'LifecyclePolicy', description: 'When a sandbox is stopped automatically.' },
)

const ResourcesReply = Type.Object(
  {
    memory_mib: int32(),
    vcpus: int32(),
    disk_size_mib: nullable(int32({ description: "Size of the writable disk. Null: the worker's default." })),
  },
  { title: 'Resources', description: 'What the sandbox may use of its worker.' },
)

const RuntimeReply = Type.Object(
  {
    cmd: nullable(Type.Array(Type.String())),
    entrypoint: nullable(Type.Array(Type.String())),
    hostname: nullable(Type.String()),
    log_level: nullable(stringEnum(SANDBOX_LOG_LEVELS)),
    metrics_sample_interval_ms: nullable(int64()),
    disable_metrics_sample: Type.Boolean(),
    scripts: stringMap(),
    shell: nullable(Type.String()),
    user: nullable(Type.String()),
    workdir: nullable(Type.String()),
  },
  { title: 'RuntimeOptions', description: 'How processes in the sandbox run. Null: the value of the image.' },
)

const RlimitReply = Type.Object(
  { resource: stringEnum(eitherCasing(RLIMIT_RESOURCES).slice(RLIMIT_RESOURCES.length)), soft: int64(), hard: int64() },
  { title: 'Rlimit', description: 'A resource limit that every process of the sandbox inherits.' },
)

const MountOptionsReply = Type.Object(
  { readonly: Type.Boolean(), noexec: Type.Boolean(), nosuid: Type.Boolean(), nodev: Type.Boolean() },
  { title: 'MountOptions', description: 'What processes can not do on a mount.' },
)

const share = {
  stat_virtualization: stringEnum(STAT_VIRTUALIZATIONS),
  host_permissions: stringEnum(HOST_PERMISSIONS),
}
const mounted = { guest: Type.String(), options: MountOptionsReply }
const MountReply = taggedUnion(
  'type',
  [
    Type.Object({ type: stringEnum(['Bind']), ...mounted, ...share, quota_mib: Type.Optional(nullable(int32())) }),
    Type.Object({ type: stringEnum(['Named']), ...mounted, ...share }),
    Type.Object({ type: stringEnum(['Tmpfs']), ...mounted, size_mib: Type.Optional(nullable(int32())) }),
    Type.Object({
      type: stringEnum(['DiskImage']),
      ...mounted,
      format: stringEnum(eitherCasing(DISK_IMAGE_FORMATS).slice(DISK_IMAGE_FORMATS.length)),
      fstype: Type.Optional(nullable(Type.String())),
    }),
  ],
  { title: 'Mount', description: 'Where something is mounted, and how. Replies do not show what is mounted.' },
)

const HostPatternReply = taggedUnion(
  'type',
  [
    Type.Object({ type: stringEnum(['exact']), value: Type.String() }),
    Type.Object({ type: stringEnum(['wildcard']), value: Type.String() }),
    Type.Object({ type: stringEnum(['any']) }),
  ],
  { title: 'SecretHost', description: 'A host, the subdomains of a name and the name itself, or any host.' },
)
const HostsReply = Type.Array(HostPatternReply)
const ViolationActionReply = Type.Object(
  { type: stringEnum(VIOLATION_ACTIONS) },
  {
    title: 'ViolationAction',
    description: 'What happens to a request that carries the placeholder of a secret to a host that may not get it.',
  },
)

const SecretReply = Type.Object(
  {
    env_var: Type.String(),
    placeholder: Type.String(),
    allowed_hosts: HostsReply,
    injection: Type.Object({
      headers: Type.Boolean(),
      basic_auth: Type.Boolean(),
      header_fields: Type.Optional(Type.Array(Type.String())),
      query_params: Type.Boolean(),
      body: Type.Boolean(),
    }),
    passthrough_hosts: HostsReply,
    on_violation: Type.Optional(ViolationActionReply),
    require_tls_identity: Type.Boolean(),
  },
  { title: 'Secret', description: 'A secret without its value.' },
)

const SecretDefaultsReply = Type.Object(
  { passthrough_hosts: HostsReply, violation_action: ViolationActionReply },
  { title: 'SecretDefaults', description: 'What applies to secrets that have no `on_violation`.' },
)

const DnsReply = Type.Object(
  { nameservers: Type.Array(Type.String()), query_timeout_ms: int32(), rebind_protection: Type.Boolean() },
  { title: 'Dns', description: 'How the names of the sandbox are resolved.' },
)

const InterfaceReply = Type.Object(
  {
    ipv4_address: nullable(Type.String()),
    ipv4_pool: nullable(Type.String()),
    mac: nullable(Type.Array(int32())),
    mtu: nullable(int32()),
  },
  { title: 'Interface', description: 'What the network device of the sandbox shows. Null: as the worker chooses.' },
)

const PublishedPort = Type.Object(
  {
    host_port: int32({ maximum: PORT_MAX }),
    guest_port: int32({ maximum: PORT_MAX }),
    host_bind: Type.String(),
    protocol: stringEnum(PUBLISHED_PROTOCOLS),
  },
  { title: 'PublishedPort', description: 'A port of the sandbox that is reachable on the machine of its worker.' },
)

const NetworkReply = Type.Object(
  {
    enabled: Type.Boolean(),
    ports: Type.Array(PublishedPort),
    trust_host_cas: Type.Boolean(),
    max_connections: Type.Optional(nullable(int32())),
    max_udp_connections: Type.Optional(int32()),
    policy: Type.Optional(nullableComponent(NetworkPolicyReply)),
    secrets: Type.Optional(Type.Array(SecretReply)),
    secret_defaults: Type.Optional(SecretDefaultsReply),
    tls: Type.Optional(TlsReply),
    interface: Type.Optional(InterfaceReply),
    dns: Type.Optional(DnsReply),
  },
  {
    title: 'Network',
    description:
      'The network of the sandbox. A null policy is the default: public addresses and DNS, and nothing else.',
  },
)

export const SandboxSpecReply = Type.Object(
  {
    image: nullable(Type.String({ description: 'The OCI image reference of the request.' })),
    resources: ResourcesReply,
    runtime: RuntimeReply,
    env: Type.Array(EnvVar),
    labels: stringMap(),
    rlimits: Type.Array(RlimitReply),
    lifecycle: LifecyclePolicyReply,
    mounts: Type.Array(MountReply),
    network: NetworkReply,
  },
  { title: 'SandboxSpec', description: 'The specification of a sandbox, without secrets and the sources of mounts.' },
)

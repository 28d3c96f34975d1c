import type { Secret, SecretDefaults } from './secrets.ts'
import type { DnsSettings } from './dns-settings.ts'
import type { NetworkInterface } from './network-interface.ts'
import type { PublishedPort } from './published-ports.ts'
import type { TlsInterception } from './tls-interception.ts'
import type { SnapshotId } from '../ids.ts'

/**
 * The specification of a sandbox: all options of a create body, with every default filled in and every enum in
 * snake_case. It is stored as JSON, and drivers get all of it.
 */
export type SandboxSpec = {
  /** An OCI image reference in the client's spelling. */
  readonly image: string
  readonly pull_policy: PullPolicy
  readonly resources: Resources
  readonly runtime: RuntimeOptions
  readonly env: readonly EnvVar[]
  readonly labels: Readonly<Record<string, string>>
  readonly rlimits: readonly Rlimit[]
  readonly mounts: readonly Mount[]
  readonly patches: readonly Patch[]
  readonly network: NetworkSpec
  readonly init: HandoffInit | null
  readonly security_profile: SecurityProfile
  readonly lifecycle: LifecyclePolicy
  /** The snapshot from which the disk is made. `image` is the snapshot's image. Absent: the disk is made empty. */
  readonly snapshot_id?: SnapshotId
}

export const PULL_POLICIES = ['if_missing', 'always', 'never'] as const
export type PullPolicy = (typeof PULL_POLICIES)[number]

export const SECURITY_PROFILES = ['default', 'restricted'] as const
export type SecurityProfile = (typeof SECURITY_PROFILES)[number]

export const SANDBOX_LOG_LEVELS = ['error', 'warn', 'info', 'debug', 'trace'] as const
export type SandboxLogLevel = (typeof SANDBOX_LOG_LEVELS)[number]

export type Resources = {
  readonly memory_mib: number
  readonly vcpus: number
  /** Null: the worker's default size. */
  readonly disk_size_mib: number | null
}

export type RuntimeOptions = {
  readonly cmd: readonly string[] | null
  readonly entrypoint: readonly string[] | null
  readonly hostname: string | null
  readonly log_level: SandboxLogLevel | null
  readonly metrics_sample_interval_ms: number | null
  readonly disable_metrics_sample: boolean
  readonly scripts: Readonly<Record<string, string>>
  readonly shell: string | null
  readonly user: string | null
  readonly workdir: string | null
}

export type EnvVar = { readonly key: string; readonly value: string }

export const RLIMIT_RESOURCES = [
  'cpu',
  'fsize',
  'data',
  'stack',
  'core',
  'rss',
  'nproc',
  'nofile',
  'memlock',
  'as',
  'locks',
  'sigpending',
  'msgqueue',
  'nice',
  'rtprio',
  'rttime',
] as const
export type RlimitResource = (typeof RLIMIT_RESOURCES)[number]
export type Rlimit = { readonly resource: RlimitResource; readonly soft: number; readonly hard: number }

export type LifecyclePolicy = {
  readonly ephemeral: boolean
  readonly idle_timeout_secs: number | null
  readonly max_duration_secs: number | null
}

export type MountOptions = {
  readonly readonly: boolean
  readonly noexec: boolean
  readonly nosuid: boolean
  readonly nodev: boolean
}
/**
 * Which owners and modes of files a sandbox sees. `strict` and `relaxed`: the owners and modes that sandboxes have set.
 * Drivers implement both alike, with a user namespace. `off`: the owners and modes on the machine.
 */
export const STAT_VIRTUALIZATIONS = ['strict', 'relaxed', 'off'] as const
export type StatVirtualization = (typeof STAT_VIRTUALIZATIONS)[number]
/**
 * How the machine's own users can access the files. `private`: not at all, because those users can't enter the folders
 * above the files. `mirror`: as the mode bits that sandboxes set allow. With `private`, the files have these mode bits,
 * too.
 */
export const HOST_PERMISSIONS = ['private', 'mirror'] as const
export type HostPermissions = (typeof HOST_PERMISSIONS)[number]
export const DISK_IMAGE_FORMATS = ['qcow2', 'raw', 'vmdk'] as const
export type DiskImageFormat = (typeof DISK_IMAGE_FORMATS)[number]

export type BindMount = {
  readonly type: 'bind'
  readonly host: string
  readonly guest: string
  readonly options: MountOptions
  readonly stat_virtualization: StatVirtualization
  readonly host_permissions: HostPermissions
  readonly quota_mib: number | null
}
export type NamedMount = {
  readonly type: 'named'
  readonly name: string
  readonly guest: string
  readonly options: MountOptions
  readonly stat_virtualization: StatVirtualization
  readonly host_permissions: HostPermissions
}
export type TmpfsMount = {
  readonly type: 'tmpfs'
  readonly guest: string
  readonly options: MountOptions
  /** Null: half of the sandbox's memory. */
  readonly size_mib: number | null
}
export type DiskImageMount = {
  readonly type: 'disk_image'
  readonly host: string
  readonly guest: string
  readonly format: DiskImageFormat
  readonly fstype: string | null
  readonly options: MountOptions
}
export type Mount = BindMount | NamedMount | TmpfsMount | DiskImageMount

/** A change to the root file system before the start. `mode` is a number such as 0o644. Paths are absolute in the sandbox. */
export type Patch =
  | {
      readonly type: 'text'
      readonly path: string
      readonly content: string
      readonly mode: number | null
      readonly replace: boolean
    }
  /** `content` is base64. A request contains it as a list of byte numbers. */
  | {
      readonly type: 'file'
      readonly path: string
      readonly content: string
      readonly mode: number | null
      readonly replace: boolean
    }
  /** `src` is a path on the organization's default volume. */
  | {
      readonly type: 'copy_file'
      readonly src: string
      readonly dst: string
      readonly mode: number | null
      readonly replace: boolean
    }
  | { readonly type: 'copy_dir'; readonly src: string; readonly dst: string; readonly replace: boolean }
  | { readonly type: 'symlink'; readonly target: string; readonly link: string; readonly replace: boolean }
  | { readonly type: 'mkdir'; readonly path: string; readonly mode: number | null }
  | { readonly type: 'remove'; readonly path: string }
  | { readonly type: 'append'; readonly path: string; readonly content: string }

export type HandoffInit = {
  readonly cmd: string
  readonly args: readonly string[]
  readonly env: readonly (readonly [string, string])[]
}

export type NetworkSpec = {
  readonly enabled: boolean
  readonly strict: boolean
  /** Null or 0: the worker's bound alone. With `max_udp_connections`, UDP doesn't count. */
  readonly max_connections: number | null
  /** Absent: UDP counts for `max_connections`. 0: the worker's bound alone. */
  readonly max_udp_connections?: number
  /** Null: the default policy, which allows DNS and egress to public addresses and nothing else. */
  readonly policy: NetworkPolicy | null
  /** Secrets to substitute, without their values. */
  readonly secrets: readonly Secret[]
  /** Absent: `NO_SECRET_DEFAULTS`. */
  readonly secret_defaults?: SecretDefaults
  /** Whether programs in the sandbox trust the certificate authorities of its machine. Absent: false. */
  readonly trust_host_cas?: boolean
  /** How TLS is intercepted. Absent: only if there are secrets, with `DEFAULT_INTERCEPTION`. */
  readonly tls?: TlsInterception
  /** What the network device shows. Absent: as the worker chooses. */
  readonly interface?: NetworkInterface
  /** How names are resolved. Absent: by the resolvers of the worker. */
  readonly dns?: DnsSettings
  /** The ports that the worker's machine listens on. Absent: none. */
  readonly ports?: readonly PublishedPort[]
}

export type NetworkPolicy = {
  readonly default_egress: Action
  readonly default_ingress: Action
  readonly rules: readonly Rule[]
}
export const ACTIONS = ['allow', 'deny'] as const
export type Action = (typeof ACTIONS)[number]
export const DIRECTIONS = ['egress', 'ingress', 'any'] as const
export type Direction = (typeof DIRECTIONS)[number]
export const PROTOCOLS = ['tcp', 'udp', 'icmpv4', 'icmpv6'] as const
export type Protocol = (typeof PROTOCOLS)[number]
/** The protocols whose packets have ports. A rule with ports applies to these alone. */
export const PROTOCOLS_WITH_PORTS = ['tcp', 'udp'] as const satisfies readonly Protocol[]
export const DESTINATION_GROUPS = [
  'public',
  'loopback',
  'private',
  'link_local',
  'metadata',
  'multicast',
  'host',
] as const
export type DestinationGroup = (typeof DESTINATION_GROUPS)[number]
export type Destination =
  | 'any'
  | { readonly cidr: string }
  | { readonly domain: string }
  | { readonly domain_suffix: string }
  | { readonly group: DestinationGroup }
/**
 * The first rule that matches in a direction decides. Empty `ports` or `protocols` match all. A range of ports includes
 * both ends.
 */
export type Rule = {
  readonly direction: Direction
  readonly destination: Destination
  readonly action: Action
  readonly ports: readonly { readonly start: number; readonly end: number }[]
  readonly protocols: readonly Protocol[]
}

/** The credential that a pull uses. It never changes where the image comes from. */
export type RegistrySelection =
  | { readonly mode: 'auto' }
  | { readonly mode: 'anonymous' }
  | { readonly mode: 'specific'; readonly credential_id: string }
  | { readonly mode: 'inline'; readonly username: string; readonly password: string }

/**
 * The sandbox specification as the program holds it: everything a create body may ask for, with every default
 * filled in and every enum in its snake_case form. It is stored as JSON and handed to the driver whole.
 * Source of the fields and defaults: service description 2.3 and 4.1.
 */
export type SandboxSpec = {
  /** An OCI image reference, as the client wrote it. */
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
  /** null: the worker's default size. */
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
 * Whose owners and modes a sandbox sees. `strict` and `relaxed`: those that sandboxes set, whatever users the machine
 * has; drivers do that by a user namespace. `off`: the machine's own.
 */
export const STAT_VIRTUALIZATIONS = ['strict', 'relaxed', 'off'] as const
export type StatVirtualization = (typeof STAT_VIRTUALIZATIONS)[number]
/**
 * What the machine's own users get of the files. `private`: nothing, whatever their modes say, because the folders above
 * are closed. `mirror`: the mode bits that a sandbox sets are those of the file on the machine, which is so either way.
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
  /** null: half of the sandbox's memory. */
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

/** A change to the root file system before the start. `mode` is a number such as 0o644; paths are absolute in the guest. */
export type Patch =
  | {
      readonly type: 'text'
      readonly path: string
      readonly content: string
      readonly mode: number | null
      readonly replace: boolean
    }
  /** `content` is base64 here; on the wire it is an array of byte numbers. */
  | {
      readonly type: 'file'
      readonly path: string
      readonly content: string
      readonly mode: number | null
      readonly replace: boolean
    }
  /** `src` is a path beneath the organization's host volume. */
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
  readonly max_connections: number | null
  /** null: the default policy of the contract (egress to public addresses and DNS; nothing else). */
  readonly policy: NetworkPolicy | null
  /** Secrets to substitute; no driver can yet, so an admitted spec has none. Values never stand here. */
  readonly secrets: readonly SecretProjection[]
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
/** First match wins per direction; empty `ports` or `protocols` match all. Ports are inclusive. */
export type Rule = {
  readonly direction: Direction
  readonly destination: Destination
  readonly action: Action
  readonly ports: readonly { readonly start: number; readonly end: number }[]
  readonly protocols: readonly Protocol[]
}

export type SecretProjection = {
  readonly env_var: string
  readonly placeholder: string
  readonly allowed_hosts: readonly object[]
  readonly injection: object
  readonly on_violation?: object
}

/** Which credential a pull presents; it never changes where the image comes from. */
export type RegistrySelection =
  | { readonly mode: 'auto' }
  | { readonly mode: 'anonymous' }
  | { readonly mode: 'specific'; readonly credential_id: string }
  | { readonly mode: 'inline'; readonly username: string; readonly password: string }

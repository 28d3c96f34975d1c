import type { ByteList } from '../byte-lists.ts'
import type { DnsInput } from './dns-settings.ts'
import type { InterfaceInput } from './network-interface.ts'
import type { PublishedPortInput } from './published-ports.ts'
import type { EitherCasing } from '../casing.ts'
import type { ViolationAction } from './secrets.ts'
import type {
  Action, DestinationGroup, Direction, DiskImageFormat, HostPermissions, Protocol, PullPolicy, RlimitResource,
  SandboxLogLevel, SecurityProfile, StatVirtualization,
} from './spec.ts' // prettier-ignore

/**
 * A create body whose shape was checked. Clients may omit fields and may spell enums in two ways. The schemas of
 * `contract` accept nothing beyond this type. The compiler compares them where the handler calls `normalizeSpec`.
 */
export type SpecInput = {
  readonly name?: string | null
  readonly slug?: string | null
  readonly image?: string | { readonly type: EitherCasing<'oci'>; readonly reference: string }
  /** The next client version (0.7) sends `source` with `reference` in place of `image`. */
  readonly source?: EitherCasing<'oci' | 'disk_snapshot'>
  readonly reference?: string
  /** With `source: disk_snapshot`. */
  readonly disk_snapshot_ref?: DiskSnapshotRefInput
  readonly pull_policy?: EitherCasing<PullPolicy>
  readonly resources?: ResourcesInput
  readonly runtime?: RuntimeInput
  readonly env?: readonly { readonly key: string; readonly value: string }[]
  readonly labels?: Readonly<Record<string, string>>
  readonly rlimits?: readonly RlimitInput[]
  readonly mounts?: readonly MountInput[]
  readonly patches?: readonly PatchInput[]
  readonly network?: NetworkInput
  readonly init?: InitInput | null
  readonly security_profile?: EitherCasing<SecurityProfile>
  readonly lifecycle?: LifecycleInput
  readonly registry?: RegistryInput
}

export type DiskSnapshotRefInput =
  | { readonly type: EitherCasing<'managed'>; readonly id: string }
  | { readonly type: EitherCasing<'host_volume'>; readonly path: string }

export type ResourcesInput = {
  readonly memory_mib?: number
  readonly vcpus?: number
  readonly disk_size_mib?: number | null
}

export type RuntimeInput = {
  readonly cmd?: readonly string[] | null
  readonly entrypoint?: readonly string[] | null
  readonly hostname?: string | null
  readonly log_level?: EitherCasing<SandboxLogLevel> | null
  readonly metrics_sample_interval_ms?: number | null
  readonly disable_metrics_sample?: boolean
  readonly scripts?: Readonly<Record<string, string>>
  readonly shell?: string | null
  readonly user?: string | null
  readonly workdir?: string | null
}

export type RlimitInput = {
  readonly resource: EitherCasing<RlimitResource>
  readonly soft: number
  readonly hard: number
}

export type LifecycleInput = {
  readonly ephemeral?: boolean
  readonly idle_timeout_secs?: number | null
  readonly max_duration_secs?: number | null
}

export type InitInput = {
  readonly cmd: string
  readonly args?: readonly string[]
  readonly env?: readonly (readonly [string, string])[]
}

export type MountOptionsInput = {
  readonly readonly?: boolean
  readonly noexec?: boolean
  readonly nosuid?: boolean
  readonly nodev?: boolean
}

/** How the files of a mount appear in the sandbox and on the host. */
export type ShareInput = {
  readonly stat_virtualization?: EitherCasing<StatVirtualization>
  readonly host_permissions?: EitherCasing<HostPermissions>
}

export type MountInput = { readonly guest: string; readonly options?: MountOptionsInput } & (
  | ({ readonly type: EitherCasing<'bind'>; readonly host: string; readonly quota_mib?: number | null } & ShareInput)
  | ({ readonly type: EitherCasing<'named'>; readonly name: string } & ShareInput)
  | { readonly type: EitherCasing<'tmpfs'>; readonly size_mib?: number | null }
  | {
      readonly type: EitherCasing<'disk_image'>
      readonly host: string
      readonly format: EitherCasing<DiskImageFormat>
      readonly fstype?: string | null
    }
)

export type PatchInput =
  | {
      readonly type: EitherCasing<'text'>
      readonly path: string
      readonly content: string
      readonly mode?: number | null
      readonly replace?: boolean
    }
  | {
      readonly type: EitherCasing<'file'>
      readonly path: string
      readonly content: ByteList | readonly number[]
      readonly mode?: number | null
      readonly replace?: boolean
    }
  | {
      readonly type: EitherCasing<'copy_file'>
      readonly src: string
      readonly dst: string
      readonly mode?: number | null
      readonly replace?: boolean
    }
  | { readonly type: EitherCasing<'copy_dir'>; readonly src: string; readonly dst: string; readonly replace?: boolean }
  | {
      readonly type: EitherCasing<'symlink'>
      readonly target: string
      readonly link: string
      readonly replace?: boolean
    }
  | { readonly type: EitherCasing<'mkdir'>; readonly path: string; readonly mode?: number | null }
  | { readonly type: EitherCasing<'remove'>; readonly path: string }
  | { readonly type: EitherCasing<'append'>; readonly path: string; readonly content: string }

export type NetworkInput = {
  readonly enabled?: boolean
  readonly strict?: boolean
  readonly max_connections?: number | null
  /** Another name of `max_connections`. */
  readonly max_tcp_connections?: number | null
  readonly max_udp_connections?: number | null
  readonly policy?: PolicyInput | null
  readonly secrets?: SecretsInput | null
  readonly trust_host_cas?: boolean
  readonly tls?: TlsInput | null
  readonly interface?: InterfaceInput | null
  readonly dns?: DnsInput | null
  readonly ports?: readonly PublishedPortInput[]
}

/** Certificates are PEM texts, also where the published API has the path of a PEM file. */
export type TlsInput = {
  readonly enabled?: boolean
  readonly intercepted_ports?: readonly number[]
  readonly bypass?: readonly string[]
  readonly block_quic_on_intercept?: boolean
  readonly verify_upstream?: boolean
  readonly upstream_ca_cert?: readonly string[]
  readonly scoped_upstream_ca_cert?: readonly { readonly pattern: string; readonly path: string }[]
  readonly scoped_verify_upstream?: readonly { readonly pattern: string; readonly verify: boolean }[]
  readonly cache?: { readonly capacity?: number; readonly validity_hours?: number }
  /** The key goes into `NormalizedSpec.interceptKey`, and nowhere else. */
  readonly intercept_ca?: { readonly cert_path?: string | null; readonly key_path?: string | null }
}

export type PolicyInput = {
  readonly default_egress?: EitherCasing<Action>
  readonly default_ingress?: EitherCasing<Action>
  readonly rules?: readonly RuleInput[]
}

export type RuleInput = {
  readonly direction: EitherCasing<Direction>
  readonly destination: DestinationInput
  readonly action: EitherCasing<Action>
  readonly ports?: readonly { readonly start: number; readonly end: number }[]
  readonly protocols?: readonly EitherCasing<Protocol>[]
}

/** The object has exactly one of its keys. */
export type DestinationInput =
  | EitherCasing<'any'>
  | {
      readonly cidr?: string
      readonly domain?: string
      readonly domain_suffix?: string
      readonly group?: EitherCasing<DestinationGroup>
    }

export type SecretsInput = {
  readonly entries?: readonly SecretInput[]
  readonly on_violation?: ViolationInput
  /** The names in the next client version (0.7). */
  readonly passthrough_hosts?: readonly HostPatternInput[]
  readonly violation_action?: ViolationActionInput
}

export type HostPatternInput =
  | { readonly type: EitherCasing<'exact'> | EitherCasing<'wildcard'>; readonly value: string }
  | { readonly type: EitherCasing<'any'> }

export type ViolationActionInput = { readonly type: EitherCasing<ViolationAction['type']> }
export type ViolationInput =
  ViolationActionInput | { readonly type: EitherCasing<'passthrough'>; readonly hosts: readonly HostPatternInput[] }

/** A secret in a create body. Its value goes into `NormalizedSpec.secretValues`, and nowhere else. */
export type SecretInput = {
  readonly env_var: string
  readonly value?: string
  /** Where the client stores the value. This server can't read it there. */
  readonly source?: { readonly type: EitherCasing<'env' | 'store'> } | null
  /** Absent: `$MSB_` and the variable. */
  readonly placeholder?: string
  readonly allowed_hosts?: readonly HostPatternInput[]
  readonly require_tls_identity?: boolean
  readonly injection?: InjectionInput
  readonly on_violation?: ViolationInput | null
  /** The names in the next client version (0.7). */
  readonly substitution?: SubstitutionInput
  readonly passthrough_hosts?: readonly HostPatternInput[]
  readonly violation_action?: ViolationActionInput | null
}

export type InjectionInput = {
  readonly headers?: boolean
  readonly basic_auth?: boolean
  readonly query_params?: boolean
  readonly body?: boolean
}

export type SubstitutionInput = {
  readonly headers?: boolean
  readonly basic_auth?: boolean
  readonly header_fields?: readonly string[] | null
  readonly query?: boolean
  readonly body?: boolean
}

export type RegistryInput =
  | { readonly mode: EitherCasing<'auto'> | EitherCasing<'anonymous'> }
  | { readonly mode: EitherCasing<'specific'>; readonly credential_id: string }
  | { readonly mode: EitherCasing<'inline'>; readonly username: string; readonly password: string }

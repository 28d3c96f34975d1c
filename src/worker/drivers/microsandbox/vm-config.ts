import type {
  HostPermissions,
  Patch,
  Rlimit,
  SandboxLogLevel,
  SecurityProfile,
  StatVirtualization,
} from '../../../domain/spec/spec.ts'
import type { VmNetwork } from './vm-network.ts'

/**
 * The complete configuration of a sandbox's microVM: the arguments of the SDK's builder as plain data. The runtime gets it
 * once, when the sandbox's disk is created. The worker sends it to the separate process `sdk-call.ts`, because no other program
 * loads the SDK.
 */
export type VmConfig = {
  readonly name: string
  /** A reference in the runtime's own store of images. */
  readonly image: string
  readonly disk_size_mib: number
  readonly vcpus: number
  readonly memory_mib: number
  readonly hostname: string
  readonly workdir: string | null
  readonly user: string | null
  readonly shell: string | null
  readonly entrypoint: readonly string[] | null
  readonly cmd: readonly string[] | null
  readonly log_level: SandboxLogLevel | null
  /** Null for the runtime's default interval, 0 to take no samples. */
  readonly metrics_sample_interval_ms: number | null
  readonly env: readonly { readonly key: string; readonly value: string }[]
  readonly labels: Readonly<Record<string, string>>
  readonly scripts: Readonly<Record<string, string>>
  readonly rlimits: readonly Rlimit[]
  readonly mounts: readonly VmMount[]
  readonly patches: readonly VmPatch[]
  /** Null for no network. */
  readonly network: VmNetwork | null
  readonly init: {
    readonly cmd: string
    readonly args: readonly string[]
    readonly env: Readonly<Record<string, string>>
  } | null
  readonly security_profile: SecurityProfile
}

type VmMountFlags = {
  readonly guest: string
  readonly readonly: boolean
  readonly noexec: boolean
  readonly nosuid: boolean
  readonly nodev: boolean
}

/** A mount of a microVM: a folder of this machine, a tmpfs, or a disk. */
export type VmMount =
  | (VmMountFlags & {
      readonly type: 'folder'
      /** A path on this machine that no sandbox can change. */
      readonly source: string
      readonly stat_virtualization: StatVirtualization
      readonly host_permissions: HostPermissions
      readonly quota_mib: number
    })
  | (VmMountFlags & { readonly type: 'tmpfs'; readonly size_mib: number | null })
  /** The path of a raw disk, which the guest mounts. A null `fstype` means that the guest finds out. */
  | (VmMountFlags & { readonly type: 'disk'; readonly source: string; readonly fstype: string | null })

/** A patch of the spec, with its source replaced by a copy on this machine that no sandbox can change. */
export type VmPatch =
  | Exclude<Patch, { readonly type: 'copy_file' | 'copy_dir' }>
  | {
      readonly type: 'copy_file'
      readonly source: string
      readonly dst: string
      readonly mode: number | null
      readonly replace: boolean
    }
  | { readonly type: 'copy_dir'; readonly source: string; readonly dst: string; readonly replace: boolean }

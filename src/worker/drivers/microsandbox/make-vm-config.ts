import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import type { Ability } from '../../../domain/abilities.ts'
import type { Mount, Patch } from '../../../domain/spec/spec.ts'
import { StartError } from '../../start-error.ts'
import { withInterpreter } from '../shared/desired-run.ts'
import { makeVmNetwork } from './vm-network.ts'
import type { VmMount, VmPatch, VmConfig } from './vm-config.ts'

/**
 * What this driver enforces. Absent: `secrets` (their values don't reach a worker), `raw_stat` (the machine's own owners,
 * written by the virtual machine's process, which is the machine's root), and `disk_images` (an image's format may name
 * other files of this machine, and a sandbox may write such an image).
 */
export const MICROSANDBOX_ABILITIES: readonly Ability[] = [
  'patches', 'rlimits', 'tmpfs', 'hostname', 'scripts', 'disk_size', 'security_restricted', 'network_off', 'network_policy',
  'network_max_connections', 'network_domains', 'named_mounts', 'bind_mounts', 'bind_quota', 'init_handoff', 'metrics',
] // prettier-ignore

/** What a plan takes from this machine. */
export type VmConfigInput = {
  readonly name: string
  readonly image: string
  readonly diskSizeMib: number
  /** The place of each mount that has one, by its index in the spec. */
  readonly sources: ReadonlyMap<number, string>
  /** The place of each patch's copy that has one, by its index in the spec. */
  readonly copies: ReadonlyMap<number, string>
  /** Addresses of this machine, which no sandbox may reach. */
  readonly hostAddresses: readonly string[]
  /** Whether the working folder has to be made. */
  readonly makesWorkdir: boolean
}

/** The most virtual processors that the runtime takes: it counts them in a byte. */
const MAX_VCPUS = 255
/** What the runtime takes for no limit: without one it would set its own of 4 GiB. */
const NO_QUOTA_MIB = 0xffff_ffff

/** A spec in the runtime's words. Throws `StartError` of kind config for what the runtime can't be told. */
export function makeVmConfig({ spec, slug }: DesiredRun, place: VmConfigInput): VmConfig {
  const { runtime, resources } = spec
  if (resources.vcpus > MAX_VCPUS)
    throw new StartError('config', `a microVM has at most ${String(MAX_VCPUS)} virtual processors`)
  return {
    name: place.name,
    image: place.image,
    disk_size_mib: place.diskSizeMib,
    vcpus: resources.vcpus,
    memory_mib: resources.memory_mib,
    hostname: runtime.hostname ?? slug,
    workdir: runtime.workdir,
    user: runtime.user,
    shell: runtime.shell,
    entrypoint: runtime.entrypoint,
    cmd: runtime.cmd,
    log_level: runtime.log_level,
    metrics_sample_interval_ms: runtime.disable_metrics_sample ? 0 : runtime.metrics_sample_interval_ms,
    env: spec.env,
    labels: spec.labels,
    scripts: Object.fromEntries(
      Object.entries(runtime.scripts).map(([name, text]) => [name, withInterpreter(text, runtime.shell)]),
    ),
    rlimits: spec.rlimits,
    mounts: spec.mounts.map((mount, index) => makeVmMount(mount, place.sources.get(index))).toSorted(parentsFirst),
    patches: [
      ...spec.patches.map((patch, index) => makeVmPatch(patch, place.copies.get(index))),
      ...(place.makesWorkdir && runtime.workdir !== null
        ? [{ type: 'mkdir', path: runtime.workdir, mode: null } as const]
        : []),
    ],
    network: makeVmNetwork(spec.network, place.hostAddresses),
    init: spec.init === null ? null : { ...spec.init, env: Object.fromEntries(spec.init.env) },
    security_profile: spec.security_profile,
  }
}

function makeVmMount(mount: Mount, source: string | undefined): VmMount {
  const { guest, options } = mount
  const flags = { guest, ...options }
  switch (mount.type) {
    case 'tmpfs':
      return { type: 'tmpfs', ...flags, size_mib: mount.size_mib }
    case 'named':
    case 'bind': {
      const { stat_virtualization, host_permissions } = mount
      const quota_mib = (mount.type === 'bind' ? mount.quota_mib : null) ?? NO_QUOTA_MIB
      // A device file of a volume may stand for no device of the machine, as with every driver.
      return {
        type: 'folder', ...flags, nodev: true, source: placed(source), stat_virtualization, host_permissions, quota_mib,
      } // prettier-ignore
    }
    case 'disk_image':
      throw new StartError('mount', 'disk images are not offered here')
  }
}

function makeVmPatch(patch: Patch, copy: string | undefined): VmPatch {
  switch (patch.type) {
    case 'copy_file':
      return { type: 'copy_file', source: placed(copy), dst: patch.dst, mode: patch.mode, replace: patch.replace }
    case 'copy_dir':
      return { type: 'copy_dir', source: placed(copy), dst: patch.dst, replace: patch.replace }
    case 'text':
    case 'file':
    case 'symlink':
    case 'mkdir':
    case 'remove':
    case 'append':
      return patch
  }
}

function placed(path: string | undefined): string {
  if (path === undefined) throw new Error('a mount or patch was planned before its source had a place')
  return path
}

function parentsFirst(a: VmMount, b: VmMount): number {
  return depthOf(a.guest) - depthOf(b.guest)
}

function depthOf(path: string): number {
  return path.split('/').filter((part) => part !== '').length
}

import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import type { Ability } from '../../../domain/abilities.ts'
import { placeholderEnv } from '../../../domain/spec/secrets.ts'
import type { Mount, Patch, SandboxSpec } from '../../../domain/spec/spec.ts'
import { StartError } from '../../start-error.ts'
import { withInterpreter } from '../shared/desired-run.ts'
import { trustEnv } from '../shared/trust-certificates.ts'
import { makeVmNetwork } from './vm-network.ts'
import type { VmMount, VmPatch, VmConfig } from './vm-config.ts'

/** The abilities of this driver on a machine with everything that they need. */
export const MICROSANDBOX_ABILITIES: readonly Ability[] = [
  'patches', 'rlimits', 'tmpfs', 'hostname', 'scripts', 'disk_size', 'security_restricted', 'network_off', 'network_policy',
  'network_max_connections', 'network_max_udp_connections', 'network_dns', 'network_interface', 'network_domains', 'secrets',
  'tls_interception', 'trust_host_cas', 'published_ports', 'named_mounts', 'bind_mounts', 'bind_quota', 'raw_stat', 'disk_images',
  'disk_image_formats', 'init_handoff', 'metrics', 'kept_disk',
] // prettier-ignore

/** The facts about this machine that a microVM's configuration needs. */
export type VmConfigInput = {
  readonly name: string
  readonly image: string
  readonly diskSizeMib: number
  /** The paths of the pinned mount sources, by the mount's index in the spec. */
  readonly sources: ReadonlyMap<number, string>
  /** The paths of the copied patch sources, by the patch's index in the spec. */
  readonly copies: ReadonlyMap<number, string>
  /** The image's bundle of certificates, to which the runtime adds those that the guest is given. */
  readonly caBundle: string
  /** Whether to create the working folder, because the image doesn't contain it. */
  readonly makesWorkdir: boolean
}

/** The maximum number of virtual processors of a microVM. The runtime stores that number in one byte. */
const MAX_VCPUS = 255
/** The value of `quota_mib` for no limit. If that field is absent, the runtime sets a limit of 4 GiB. */
const NO_QUOTA_MIB = 0xffff_ffff

/**
 * Translates a spec into a microVM's configuration. Throws `StartError` of reason `config` if the runtime does not
 * support a value of the spec.
 */
export function makeVmConfig({ spec, slug }: DesiredRun, input: VmConfigInput): VmConfig {
  const { runtime, resources } = spec
  if (resources.vcpus > MAX_VCPUS)
    throw new StartError('config', `a microVM has at most ${String(MAX_VCPUS)} virtual processors`)
  return {
    name: input.name,
    image: input.image,
    disk_size_mib: input.diskSizeMib,
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
    env: environmentOf(spec, input.caBundle),
    labels: spec.labels,
    scripts: Object.fromEntries(
      Object.entries(runtime.scripts).map(([name, text]) => [name, withInterpreter(text, runtime.shell)]),
    ),
    rlimits: spec.rlimits,
    mounts: spec.mounts.map((mount, index) => makeVmMount(mount, input.sources.get(index))).toSorted(parentsFirst),
    patches: [
      ...spec.patches.map((patch, index) => makeVmPatch(patch, input.copies.get(index))),
      ...(input.makesWorkdir && runtime.workdir !== null
        ? [{ type: 'mkdir', path: runtime.workdir, mode: null } as const]
        : []),
    ],
    network: makeVmNetwork(spec),
    init: spec.init === null ? null : { ...spec.init, env: Object.fromEntries(spec.init.env) },
    security_profile: spec.security_profile,
  }
}

/** The variables of every process in a sandbox beside those of its image. The later one of two with the same name holds. */
export function environmentOf(spec: SandboxSpec, caBundle: string): SandboxSpec['env'] {
  return [...trustEnv(spec, { all: caBundle, added: GIVEN_CERTIFICATES }), ...placeholderEnv(spec), ...spec.env]
}

/** Where the runtime puts the certificates that it takes for those of the machine. It adds them to the image's bundle, too. */
export const GIVEN_CERTIFICATES = '/.msb/tls/host-cas.pem'

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
      // As with every driver, a device file in a volume must not give access to a device of the machine.
      return {
        type: 'folder', ...flags, nodev: true, source: requirePath(source), stat_virtualization, host_permissions, quota_mib,
      } // prettier-ignore
    }
    case 'disk_image':
      return { type: 'disk', ...flags, nodev: true, source: requirePath(source), fstype: mount.fstype }
  }
}

function makeVmPatch(patch: Patch, copy: string | undefined): VmPatch {
  switch (patch.type) {
    case 'copy_file':
      return { type: 'copy_file', source: requirePath(copy), dst: patch.dst, mode: patch.mode, replace: patch.replace }
    case 'copy_dir':
      return { type: 'copy_dir', source: requirePath(copy), dst: patch.dst, replace: patch.replace }
    case 'text':
    case 'file':
    case 'symlink':
    case 'mkdir':
    case 'remove':
    case 'append':
      return patch
  }
}

function requirePath(path: string | undefined): string {
  if (path === undefined) throw new Error('a mount or patch has no source on this machine yet')
  return path
}

function parentsFirst(a: VmMount, b: VmMount): number {
  return depthOf(a.guest) - depthOf(b.guest)
}

function depthOf(path: string): number {
  return path.split('/').filter((part) => part !== '').length
}

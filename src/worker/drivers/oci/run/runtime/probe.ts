import { existsSync } from 'node:fs'
import { isolationAbilities } from '../../../../../domain/isolation.ts'
import type { Ability } from '../../../../../domain/abilities.ts'
import type { Probe } from '../../../driver.ts'
import { supportedBy } from '../../../shared/network-abilities.ts'
import { findMissingPrograms, measureCapacity } from '../../../shared/machine.ts'
import type { OciContext } from '../../context.ts'
import { WARM_MEMORY_MIB, warmLimit } from '../../warm-limit.ts'
import { findLackingImageAbilities } from '../disk-image-abilities.ts'
import { describeUserIds } from '../../users/sandbox-users.ts'

/**
 * The abilities of this driver on a machine with everything that they need. The control plane refuses a spec that needs any
 * other ability, and names the missing ability.
 */
export const OCI_ABILITIES: readonly Ability[] = [
  'patches', 'rlimits', 'tmpfs', 'hostname', 'scripts', 'disk_size', 'security_restricted', 'network_off', 'network_policy',
  'network_max_connections', 'network_max_udp_connections', 'network_dns', 'network_interface', 'network_domains', 'secrets', 'tls_interception',
  'trust_host_cas', 'published_ports', 'named_mounts', 'bind_mounts', 'bind_quota', 'raw_stat', 'disk_images', 'disk_image_formats',
  'init_handoff', 'metrics', 'snapshots', 'kept_disk',
] // prettier-ignore

/** The programs that must be installed on the host to start a sandbox. */
const PROGRAMS = ['mount', 'umount', 'unshare', 'nsenter', 'ip', 'nft', 'mkfs.ext4', 'e2fsck', 'perl'] as const

/**
 * Reports the machine's capacity and the driver's abilities. Rejects when the machine can't run sandboxes. The error
 * message lists everything that is missing.
 */
export async function probeMachine(context: OciContext): Promise<Probe> {
  const { settings, runtime } = context
  assertMachineUsable(settings.initBinary)
  return {
    report: {
      name: 'oci',
      isolation: describeIsolation(context),
      abilities: [...abilitiesHere(context), ...isolationAbilities(runtime.level)],
      images: await context.images.list(),
      default_disk_mib: Math.min(settings.defaultDiskMib, settings.maxDiskMib),
      publishes: context.networks.publishes,
    },
    capacity: await measureCapacity(
      settings,
      await context.disks.measureLimitMib(),
      warmLimit(context) * WARM_MEMORY_MIB,
    ),
  }
}

/** The abilities of this driver that this machine supports. */
function abilitiesHere({ networks, cgroups, imageFlaw, volumes, runtime }: OciContext): readonly Ability[] {
  const lacking: readonly Ability[] = [
    ...(cgroups.initFlaw === null ? [] : (['init_handoff'] as const)),
    ...findLackingImageAbilities(imageFlaw),
    // Kata serves all mounts by one process, whose copies may share blocks and so get past a limit.
    ...(volumes.folderLimits === null || runtime.name === 'kata-runtime' ? (['bind_quota'] as const) : []),
  ]
  return supportedBy(networks, OCI_ABILITIES).filter((ability) => !lacking.includes(ability))
}

/** Describes what separates a sandbox from the machine and from other sandboxes. */
export function describeIsolation({ runtime, users }: Pick<OciContext, 'runtime' | 'users'>): string {
  return `${runtime.isolation}, ${describeUserIds(users.flaws)}`
}

/** Throws if sandboxes can't run on this machine. The message lists everything that is missing. */
export function assertMachineUsable(initBinary: string): void {
  const missing = findMissingOciRequirements(initBinary)
  if (missing.length > 0) throw new Error(`sandboxes can't run here: ${missing.join('; ')}`)
}

/** Lists everything that prevents sandboxes from running on this machine. The list is empty if they can run. */
export function findMissingOciRequirements(initBinary: string): readonly string[] {
  if (process.platform !== 'linux') return ['the machine does not run Linux']
  return [
    ...(process.getuid?.() === 0 ? [] : ['the worker is not root']),
    ...findMissingPrograms(PROGRAMS).map((name) => `the program '${name}' is missing`),
    ...(existsSync(initBinary) ? [] : [`the init program ${initBinary} is missing (package catatonit)`]),
    ...(existsSync('/proc/self/ns/user') ? [] : ['the kernel has no user namespaces']),
  ]
}

/**
 * Lists the missing programs that the worker needs to create its toolbox. Without the toolbox, the worker can't serve the files
 * of sandboxes.
 */
export function findMissingToolboxPrograms(): readonly string[] {
  const packages: Readonly<Record<string, string>> = { perl: 'perl-base', ldd: 'libc-bin' }
  return findMissingPrograms(Object.keys(packages)).map(
    (name) => `the program '${name}' is missing (package ${packages[name] ?? name})`,
  )
}

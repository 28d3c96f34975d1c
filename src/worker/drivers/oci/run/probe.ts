import { existsSync } from 'node:fs'
import type { Ability } from '../../../../domain/abilities.ts'
import type { Probe } from '../../driver.ts'
import { findMissingPrograms, measureCapacity } from '../../shared/machine.ts'
import type { OciContext } from '../context.ts'

/** What this driver enforces. The control plane refuses specs that need another ability, by its name. */
export const OCI_ABILITIES: readonly Ability[] = [
  'patches', 'rlimits', 'tmpfs', 'hostname', 'scripts', 'disk_size', 'security_restricted', 'network_off', 'network_policy',
  'network_max_connections', 'named_mounts', 'bind_mounts',
] // prettier-ignore

/** The programs of the host that a start needs. */
const PROGRAMS = ['mount', 'umount', 'unshare', 'nsenter', 'ip', 'nft', 'mkfs.ext4', 'e2fsck', 'perl'] as const

/** What this machine offers. Rejects when it can't run sandboxes; the message lists everything that is missing. */
export async function probeMachine(context: OciContext): Promise<Probe> {
  const { settings, runtime } = context
  assertMachineUsable(settings.initBinary)
  return {
    report: {
      name: 'oci',
      isolation: runtime.isolation,
      abilities: OCI_ABILITIES,
      images: await context.images.list(),
    },
    capacity: await measureCapacity(context.dir, settings.cpuOvercommit),
  }
}

/** Throws when sandboxes can't run here; the message lists everything that is missing. */
export function assertMachineUsable(initBinary: string): void {
  const missing = findMissingOciRequirements(initBinary)
  if (missing.length > 0) throw new Error(`sandboxes can't run here: ${missing.join('; ')}`)
}

/** Describes everything that keeps sandboxes from running; empty when nothing does. */
export function findMissingOciRequirements(initBinary: string): readonly string[] {
  if (process.platform !== 'linux') return ['the machine does not run Linux']
  return [
    ...(process.getuid?.() === 0 ? [] : ['the worker is not root']),
    ...findMissingPrograms(PROGRAMS).map((name) => `the program '${name}' is missing`),
    ...(existsSync(initBinary) ? [] : [`the init program ${initBinary} is missing (package catatonit)`]),
    ...(existsSync('/proc/self/ns/user') ? [] : ['the kernel has no user namespaces']),
  ]
}

/** Describes what keeps the worker from making its toolbox, without which it can't serve the files of sandboxes. */
export function findMissingToolboxPrograms(): readonly string[] {
  const packages: Readonly<Record<string, string>> = { perl: 'perl-base', ldd: 'libc-bin' }
  return findMissingPrograms(Object.keys(packages)).map(
    (name) => `the program '${name}' is missing (package ${packages[name] ?? name})`,
  )
}

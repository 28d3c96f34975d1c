import { existsSync } from 'node:fs'
import type { Ability } from '../../../../domain/abilities.ts'
import type { Probe } from '../../driver.ts'
import { findMissingPrograms, measureCapacity } from '../../shared/machine.ts'
import type { OciContext } from '../context.ts'

/** What this driver enforces. An ability that is not here is refused by name before a run gets this far. */
export const OCI_ABILITIES: readonly Ability[] = [
  'patches', 'rlimits', 'tmpfs', 'hostname', 'scripts', 'disk_size', 'security_restricted', 'network_off', 'network_policy',
  'network_max_connections', 'named_mounts', 'bind_mounts',
] // prettier-ignore

/** Programs of the host that a start calls. */
const PROGRAMS = ['mount', 'umount', 'unshare', 'nsenter', 'ip', 'nft', 'mkfs.ext4', 'e2fsck', 'perl'] as const

/** What the machine offers. Rejects with all that is missing, in one text for people. */
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

/** Throws when sandboxes can't run here, with all that is missing in one text for people. */
export function assertMachineUsable(initBinary: string): void {
  const missing = findMissingOciRequirements(initBinary)
  if (missing.length > 0) throw new Error(`sandboxes can't run here: ${missing.join('; ')}`)
}

/** Everything that keeps sandboxes from running, in words; empty when nothing does. */
export function findMissingOciRequirements(initBinary: string): readonly string[] {
  if (process.platform !== 'linux') return ['the machine does not run Linux']
  return [
    ...(process.getuid?.() === 0 ? [] : ['the worker is not root']),
    ...findMissingPrograms(PROGRAMS).map((name) => `the program '${name}' is missing`),
    ...(existsSync(initBinary) ? [] : [`the init program ${initBinary} is missing (package catatonit)`]),
    ...(existsSync('/proc/self/ns/user') ? [] : ['the kernel has no user namespaces']),
  ]
}

/** What keeps the worker from making its toolbox, without which the files of sandboxes are not offered; in words. */
export function findMissingToolboxPrograms(): readonly string[] {
  const packages: Readonly<Record<string, string>> = { perl: 'perl-base', ldd: 'libc-bin' }
  return findMissingPrograms(Object.keys(packages)).map(
    (name) => `the program '${name}' is missing (package ${packages[name] ?? name})`,
  )
}

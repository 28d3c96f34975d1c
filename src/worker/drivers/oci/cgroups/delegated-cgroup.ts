import { chown, mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { writeValue } from './cgroup-files.ts'

/** What the owner of a delegated cgroup may write (cgroups(7), "Delegation"). The files with limits stay root's. */
const OWNED_FILES = ['', 'cgroup.procs', 'cgroup.threads', 'cgroup.subtree_control'] as const

/**
 * The most cgroups that an init may create. The kernel limits their number for no user and no machine. systemd creates one for
 * each unit.
 */
const MOST_CGROUPS = 1024
const MOST_LEVELS = 16

/** Creates a cgroup of version 2 that an unprivileged host user may divide. May be repeated. */
export async function createDelegated(dir: string, owner: number): Promise<void> {
  await mkdir(dir, { recursive: true })
  writeValue(join(dir, 'cgroup.max.descendants'), MOST_CGROUPS)
  writeValue(join(dir, 'cgroup.max.depth'), MOST_LEVELS)
  await Promise.all(OWNED_FILES.map((file) => chown(join(dir, file), owner, owner)))
}

import { existsSync } from 'node:fs'
import { readdir, rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import { asId, type RunId } from '../../../../domain/ids.ts'
import { unmountBelow } from '../../../mounts.ts'
import { endOrphanedCallers } from '../../../processes/orphaned-callers.ts'
import { commandLineOf, sendSignal } from '../../../processes/process-identity.ts'
import type { OciContext } from '../context.ts'
import { TOOLBOX_PREFIX } from '../rootfs/toolbox.ts'
import { PIPE_FOLDER } from './pipe-folder.ts'
import { removeContainer } from './release.ts'
import { containerIdOf, type OciRunRecord } from './run-records.ts'
import { SHIM_NAME } from './runtime/shim.ts'

/**
 * Ends the system calls of an earlier worker, and kills the shims of its starts that did not finish. Such a shim is in
 * no record and may still be starting its container. A shim is found by its command line, which contains the run's id.
 * Call this function before the runs are adopted.
 */
export async function endOrphans(context: OciContext): Promise<void> {
  await endOrphanedCallers(context.clock)
  const started = context.records.list().filter((record) => record.started !== null)
  const known = new Set(started.flatMap(namesOf))
  const orphans = (await listRunNames(context)).filter((run) => !known.has(run))
  if (orphans.length === 0) return
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue
    const args = commandLineOf(Number(name))
    if (args.includes(SHIM_NAME) && orphans.some((run) => args.includes(run))) sendSignal(-Number(name), 'SIGKILL')
  }
}

/**
 * Takes from the records the processes of runs that have no cgroup of this driver. They have ended, or they belong to the
 * installation of which this one is a copy: its runtime's state and its processes must not be touched.
 */
export async function disownRuns(context: OciContext): Promise<void> {
  const own = new Set(await context.cgroups.list())
  for (const record of context.records.list()) {
    if (record.started === null || record.is_released || own.has(containerIdOf(record))) continue
    const started = { ...record.started, runtime: context.runtime, shim: null, init: null }
    context.records.write({ ...record, started })
  }
}

/**
 * Removes every container that no readable record has, such as the warm sandboxes of an earlier worker: processes, network,
 * cgroup, mounts and files.
 */
export async function removeUnrecordedRuns(context: OciContext): Promise<void> {
  const known = new Set(context.records.list().flatMap(namesOf))
  for (const run of await listRunNames(context)) if (!known.has(run)) await removeContainer(context, run)
}

/** The names under which a run has folders, cgroups and mounts on this machine. */
function namesOf(record: OciRunRecord): readonly RunId[] {
  return [record.run_id, containerIdOf(record)]
}

/** Lists every run and container that has a folder, a cgroup or a mount on this machine. */
async function listRunNames({ records, cgroups, mountDir }: OciContext): Promise<readonly RunId[]> {
  const mounted = (await readdir(mountDir)).filter((name) => !isShared(name))
  const names = new Set([...(await records.names()), ...(await cgroups.list()), ...mounted])
  return [...names].map((name) => asId<RunId>(name))
}

/** Removes the mount folder and the parent cgroup unless a run still uses them. */
export async function removeIfUnused({
  mountDir,
  cgroups,
  clock,
  commands,
}: Pick<OciContext, 'mountDir' | 'cgroups' | 'clock' | 'commands'>): Promise<void> {
  const names = existsSync(mountDir) ? await readdir(mountDir) : []
  const shared = names.filter(isShared)
  if (names.length > shared.length || (await cgroups.list()).length > 0) return
  await unmountBelow(mountDir, { clock, commands })
  for (const name of shared) await rmdir(join(mountDir, name))
  if (existsSync(mountDir)) await rmdir(mountDir)
  await cgroups.close()
}

/** Whether a mount belongs to no run, but to the driver. */
function isShared(name: string): boolean {
  return name.startsWith(TOOLBOX_PREFIX) || name === PIPE_FOLDER
}

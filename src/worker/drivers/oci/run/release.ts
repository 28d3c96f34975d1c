import { existsSync } from 'node:fs'
import { rm, rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { RunId } from '../../../../domain/ids.ts'
import { hasErrorCode } from '../../../../lib/error-code.ts'
import type { CommandRunner } from '../../../../lib/run-command.ts'
import { unmountBelow } from '../../../mounts.ts'
import { describeProcess, sendSignal } from '../../../processes/process-identity.ts'
import { removePins } from '../../shared/pin-mounts.ts'
import type { OciContext } from '../context.ts'
import { endImageServers } from './end-image-servers.ts'
import { rootfsPaths } from '../rootfs/root-mounts.ts'
import { containerIdOf, type OciRunRecord } from './run-records.ts'
import type { Runtime } from './runtime/runtime.ts'

const KILL_TIMEOUT_MS = 10_000
const SERVER_PATIENCE_MS = 5_000
const KILL_POLL_MS = 5
const RUNTIME_TIMEOUT_MS = 20_000

/** Kills a run's processes, frees its network, cgroup and mounts, and releases its disk. Implements `RunOperations.release`. */
export async function releaseRun(context: OciContext, record: OciRunRecord): Promise<void> {
  const container = containerIdOf(record)
  await killProcesses(context, container)
  await endImageServers(context, record)
  await killCommands(context, container)
  // A runtime that sees its container end deletes the container's state. State is left only if the runtime died with
  // the container.
  const hasRuntimeState =
    context.records.readExit(record.run_id) === null &&
    existsSync(join(context.records.folderOf(container), 'config.json'))
  if (hasRuntimeState) await deleteFromRuntime(context, record.started?.runtime ?? context.runtime, container)
  await Promise.all([
    context.networks.detach(container),
    removeCgroups(context, container),
    releaseDisk(context, record),
  ])
  // Another run may get the ids only now: no process and no mount with them is left.
  if (record.ids !== undefined) context.users.free(record.ids)
}

/** Releases a run's disk. If the sandbox's first start failed, also deletes the disk, because it contains no data. */
async function releaseDisk(context: OciContext, record: OciRunRecord): Promise<void> {
  const { disks, diskLocks } = context
  const { run_id, sandbox_id } = record
  await diskLocks.run(sandbox_id, async () => {
    await removeMounts(context, containerIdOf(record))
    await disks.releaseHolder(sandbox_id, run_id)
    if (!disks.isReady(sandbox_id) && disks.holderOf(sandbox_id) === null) await disks.delete(sandbox_id)
  })
}

/** Unmounts a run's file systems and removes their folders. It removes only empty folders, so it can't delete content. */
export async function removeMounts(
  context: Pick<OciContext, 'mountDir' | 'clock'> & { readonly commands: CommandRunner },
  run: string,
): Promise<void> {
  const paths = rootfsPaths(context.mountDir, run)
  if (!existsSync(paths.base)) return
  await unmountBelow(paths.base, context)
  await rm(join(paths.base, 'layers'), { recursive: true, force: true })
  for (const folder of [join(paths.base, 'mapped'), paths.pins]) await removePins(folder)
  for (const folder of [paths.root, paths.disk, paths.devices, paths.base]) {
    if (existsSync(folder)) await rmdir(folder)
  }
}

/**
 * Removes everything that belongs to a container of no run: processes, network, cgroups, mounts and files. Succeeds for an unknown
 * container.
 */
export async function removeContainer(context: OciContext, container: RunId): Promise<void> {
  await killProcesses(context, container)
  await killCommands(context, container)
  await deleteFromRuntime(context, context.runtime, container)
  await Promise.all([
    context.networks.detach(container),
    removeCgroups(context, container),
    removeMounts(context, container),
  ])
  await context.records.delete(container)
}

/**
 * Removes a run's cgroups. While one of them is busy, kills its processes and tries again: the launcher may have moved the
 * process of another command into it, and a process that is ending keeps its cgroup although the kernel no longer lists it.
 * Rejects after 10 s.
 */
export async function removeCgroups(context: OciContext, run: RunId): Promise<void> {
  const deadlineMs = context.clock.monotonicMs() + KILL_TIMEOUT_MS
  for (;;) {
    try {
      await context.cgroups.remove(run)
      return
    } catch (error) {
      if (!hasErrorCode(error, 'EBUSY') || context.clock.monotonicMs() > deadlineMs) throw error
    }
    await context.clock.sleep(KILL_POLL_MS)
    await killProcesses(context, run)
    await killCommands(context, run)
  }
}

/**
 * Kills every process in a sandbox and waits until none is left. A process that waits in the kernel for the server of a disk
 * image ends only with its request. If the server doesn't answer for 5 s, it is killed too, which fails all its requests.
 * Rejects after 10 s more.
 */
export async function killProcesses(context: OciContext, run: RunId): Promise<void> {
  const listPids = (): Promise<readonly number[]> => context.cgroups.pids(run)
  if ((await killWithin(context, SERVER_PATIENCE_MS, listPids)).length === 0) return
  await killCommands(context, run)
  await killAll(context, listPids)
}

/** Kills the host's processes that serve a run's commands and disk images. */
export async function killCommands(context: OciContext, run: RunId): Promise<void> {
  await killAll(context, () => context.cgroups.commandPids(run))
}

async function killAll(context: OciContext, listPids: () => Promise<readonly number[]>): Promise<void> {
  const left = await killWithin(context, KILL_TIMEOUT_MS, listPids)
  if (left.length > 0)
    throw new Error(`processes of a sandbox can't be killed: ${left.map(describeProcess).join(', ')}`)
}

/**
 * Kills processes until none is left, or `limitMs` after the first ones were killed. Returns those that are left. On a busy worker, to list
 * them can take as long as that.
 */
export async function killWithin(
  { clock }: Pick<OciContext, 'clock'>,
  limitMs: number,
  listPids: () => Promise<readonly number[]>,
): Promise<readonly number[]> {
  let deadlineMs = Number.POSITIVE_INFINITY
  for (;;) {
    const pids = await listPids()
    const nowMs = clock.monotonicMs()
    if (pids.length === 0 || nowMs > deadlineMs) return pids
    for (const pid of pids) sendSignal(pid, 'SIGKILL')
    deadlineMs = Math.min(deadlineMs, nowMs + limitMs)
    await clock.sleep(KILL_POLL_MS)
  }
}

/**
 * Deletes a runtime's state of a container and kills the container's remaining processes. Succeeds for an unknown container.
 */
export async function deleteFromRuntime(
  { commands }: Pick<OciContext, 'commands'>,
  runtime: Runtime,
  run: RunId,
): Promise<void> {
  const [file = '', ...args] = [...runtime.command, 'delete', '--force', run]
  await commands.attempt(file, args, { timeoutMs: RUNTIME_TIMEOUT_MS })
}

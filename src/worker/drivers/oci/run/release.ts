import { existsSync } from 'node:fs'
import { rm, rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { RunOutcome } from '../../../../contract/workers/worker-protocol.ts'
import type { RunId } from '../../../../domain/ids.ts'
import { LIFECYCLE_LINES } from '../../../logs/lifecycle-lines.ts'
import type { OciContext } from '../context.ts'
import { unmountBelow } from '../../../mounts.ts'
import { observeRun } from './observe.ts'
import { removePins } from '../../shared/pin-mounts.ts'
import { sendSignal } from '../../../processes/process-identity.ts'
import { rootfsPaths } from '../../shared/rootfs.ts'
import type { OciRunRecord } from './run-records.ts'
import type { Runtime } from './runtime.ts'

/**
 * Brings a run that has ended to rest: its outcome is written down, then everything of it is let go but its record.
 * A run that lives is left alone. May be repeated; answers with the record as it is then.
 */
export async function releaseIfEnded(context: OciContext, record: OciRunRecord): Promise<OciRunRecord> {
  if (record.is_released) return record
  const seen = await observeRun(context, record, false)
  return seen.phase === 'ended' ? await recordEnd(context, record, seen.outcome) : record
}

/**
 * Records an outcome and lets go of all that a run holds, killing what may still live of it. Before, the last output is
 * read; behind it the log tells the end, once.
 */
export async function recordEnd(context: OciContext, record: OciRunRecord, outcome: RunOutcome): Promise<OciRunRecord> {
  await context.captures.finish(record)
  const ended: OciRunRecord = { ...record, outcome }
  await context.records.write(ended)
  const log = context.logs.writerOf(record.sandbox_id)
  if (record.outcome === null) log.system(LIFECYCLE_LINES.ended(outcome))
  log.closeRun()
  await release(context, ended)
  const released: OciRunRecord = { ...ended, is_released: true }
  await context.records.write(released)
  return released
}

const KILL_TIMEOUT_MS = 10_000
const KILL_POLL_MS = 5
const RUNTIME_TIMEOUT_MS = 20_000

async function release(context: OciContext, record: OciRunRecord): Promise<void> {
  const run = record.run_id
  await killProcesses(context, run)
  // The runtime forgets a container whose end it saw; only one that died under it has to be forgotten by hand.
  const hasRuntimeState =
    context.records.readExit(run) === null && existsSync(join(context.records.folderOf(run), 'config.json'))
  if (hasRuntimeState) await deleteFromRuntime(context, record.started?.runtime ?? context.runtime, run)
  await Promise.all([context.networks.detach(run), context.cgroups.remove(run), releaseMounts(context, record)])
}

async function releaseMounts(context: OciContext, record: OciRunRecord): Promise<void> {
  await removeMounts(context, record.run_id)
  const { disks } = context
  await disks.releaseHolder(record.sandbox_id, record.run_id)
  if (!disks.isReady(record.sandbox_id) && (await disks.holderOf(record.sandbox_id)) === null)
    await disks.delete(record.sandbox_id)
}

/** Unmounts a run's file systems and removes their folders; folders alone, so that no content can be deleted. */
export async function removeMounts(
  context: Pick<OciContext, 'mountDir' | 'clock' | 'commands'>,
  run: string,
): Promise<void> {
  const paths = rootfsPaths(context.mountDir, run)
  if (!existsSync(paths.base)) return
  await unmountBelow(paths.base, context)
  await rm(join(paths.base, 'layers'), { recursive: true, force: true })
  await removePins(paths.pins)
  for (const folder of [paths.root, paths.disk, paths.base]) {
    if (existsSync(folder)) await rmdir(folder)
  }
}

/** Kills every process of a run and waits until none is left. */
export async function killProcesses(context: OciContext, run: RunId): Promise<void> {
  const deadlineMs = context.clock.monotonicMs() + KILL_TIMEOUT_MS
  for (;;) {
    const pids = await context.cgroups.pids(run)
    if (pids.length === 0) return
    if (context.clock.monotonicMs() > deadlineMs)
      throw new Error(`processes of run ${run} can't be killed: ${pids.join(', ')}`)
    for (const pid of pids) sendSignal(pid, 'SIGKILL')
    await context.clock.sleep(KILL_POLL_MS)
  }
}

/** Makes a runtime forget a container, killing what is left of it; one that it doesn't know is no error. */
export async function deleteFromRuntime(
  { commands }: Pick<OciContext, 'commands'>,
  runtime: Runtime,
  run: RunId,
): Promise<void> {
  const [file = '', ...args] = [...runtime.command, 'delete', '--force', run]
  await commands.attempt(file, args, { timeoutMs: RUNTIME_TIMEOUT_MS })
}

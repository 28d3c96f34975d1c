import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { RunOutcome } from '../../../contract/workers/worker-protocol.ts'
import type { RunId } from '../../../domain/ids.ts'
import { isAlive, sendSignal } from '../../processes/process-identity.ts'
import type { VmContext } from './context.ts'
import { vmPaths } from './installation.ts'
import { unpinMountSources } from './mount-sources.ts'
import { SDK_CALL_MARK } from './sdk-client.ts'
import { WATCHER_MARK } from './start-workload.ts'
import { findProcesses, findVm, killProcesses } from './vm-process.ts'
import type { VmRunRecord } from './vm-records.ts'

const POLL_MS = 20
/** How long a guest may take to flush its disk and shut down. The runtime itself allows 2 s (0.6.14). */
const SHUT_DOWN_SECS = 10

/** Stops a run's workload, then its virtual machine. Implements `RunOperations.stopProcesses`. */
export async function stopVm(context: VmContext, record: VmRunRecord, graceMs: number): Promise<void> {
  await stopWorkload(context, record, graceMs)
  await shutDownVm(context, record)
}

/**
 * Sends SIGTERM to the workload and waits at most `graceMs` for its end. Returns at once if there is no workload.
 * Processes that clients started get SIGTERM only when the guest shuts down, as in microsandbox's own service.
 */
async function stopWorkload({ clock, records }: VmContext, record: VmRunRecord, graceMs: number): Promise<void> {
  const { run_id, started } = record
  if (started === null || started.watcher === null || graceMs === 0) return
  if (!isAlive(started.watcher)) return
  sendSignal(started.watcher.pid, 'SIGTERM')
  const deadlineMs = clock.monotonicMs() + graceMs
  const isOver = async (): Promise<boolean> =>
    (await records.readEnd(run_id)) !== null || !isAlive(started.vm) || clock.monotonicMs() >= deadlineMs
  while (!(await isOver())) await clock.sleep(POLL_MS)
}

/** Asks the guest to flush its disk and shut down, then kills the remaining processes of the virtual machine. */
async function shutDownVm({ clock, home, msb }: VmContext, { sandbox_id, started }: VmRunRecord): Promise<void> {
  const { name } = vmPaths(home, sandbox_id)
  if (started !== null && isAlive(started.vm)) await msb.stop(name, SHUT_DOWN_SECS)
  await killProcesses(await findVm(name), clock)
}

/**
 * Shuts the virtual machine down and copies the rest of its output, which is complete only after the shutdown. Records
 * the outcome before the shutdown, because a virtual machine that is off no longer shows how its run ended. Implements
 * `RunOperations.readLastOutput`.
 */
export async function readLastOutput(context: VmContext, record: VmRunRecord, outcome: RunOutcome): Promise<void> {
  context.records.write({ ...record, outcome })
  await killProcesses(await findProcesses([SDK_CALL_MARK, record.run_id]), context.clock)
  await shutDownVm(context, record)
  await context.captures.finish(record.run_id)
}

/** Frees the mounts and files of a run whose virtual machine is off. Implements `RunOperations.release`. */
export async function releaseRun(context: VmContext, { run_id, sandbox_id }: VmRunRecord): Promise<void> {
  const { clock, home, msb, storedSandboxes } = context
  await killProcesses(await findProcesses([WATCHER_MARK, run_id]), clock)
  if ((await storedSandboxes.read(sandbox_id)) === null) await msb.remove(vmPaths(home, sandbox_id).name)
  await context.networks.detach(run_id)
  await unpinMountSources(context, sandbox_id)
  await rm(copiesFolder(context, run_id), { recursive: true, force: true })
}

/** Returns the folder that stores the copied patch sources until the disk is created. */
export function copiesFolder({ records }: Pick<VmContext, 'records'>, run: RunId): string {
  return join(records.folderOf(run), 'copies')
}

import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { RunOutcome } from '../../../contract/workers/worker-protocol.ts'
import type { RunId } from '../../../domain/ids.ts'
import { LIFECYCLE_LINES } from '../../logs/lifecycle-lines.ts'
import { isAlive } from '../../processes/process-identity.ts'
import type { VmContext } from './context.ts'
import { vmPaths } from './installation.ts'
import { SDK_CALL_MARK } from './sdk-client.ts'
import { unpinMountSources } from './mount-sources.ts'
import { observeVm } from './vm-phase.ts'
import { findProcesses, findVm, killProcesses } from './vm-process.ts'
import type { VmRunRecord } from './vm-records.ts'
import { WORKLOAD_MARK } from './workload-request.ts'

/** How long a guest may take to write what it holds and to switch off; the runtime itself gives it 2 s (0.6.14). */
const SWITCH_OFF_SECS = 10

/**
 * Brings a run that has ended to rest: its outcome is written down, then everything of it is let go but its record. A
 * run that lives is left alone. May be repeated; answers with the record as it is then.
 */
export async function releaseIfEnded(context: VmContext, record: VmRunRecord): Promise<VmRunRecord> {
  if (record.is_released) return record
  const seen = await observeVm(context, record, false)
  return seen.phase === 'ended' ? await recordEnd(context, record, seen.outcome) : record
}

/** Records an outcome and lets go of all that a run holds; what still lives of it is ended. */
export async function recordEnd(context: VmContext, record: VmRunRecord, outcome: RunOutcome): Promise<VmRunRecord> {
  const ended: VmRunRecord = { ...record, outcome }
  await context.records.write(ended)
  await release(context, ended)
  await context.captures.finish(record.run_id)
  const log = context.logs.writerOf(record.sandbox_id)
  if (record.outcome === null) log.system(LIFECYCLE_LINES.ended(outcome))
  log.closeRun()
  const released: VmRunRecord = { ...ended, is_released: true }
  await context.records.write(released)
  return released
}

async function release(context: VmContext, record: VmRunRecord): Promise<void> {
  const { clock, storedSandboxes, msb } = context
  const { name } = vmPaths(context.home, record.sandbox_id)
  await killProcesses(await findProcesses([SDK_CALL_MARK, record.run_id]), clock)
  await shutDownVm(context, record)
  await killProcesses(await findProcesses([WORKLOAD_MARK, record.run_id]), clock)
  if ((await storedSandboxes.read(record.sandbox_id)) === null) await msb.remove(name)
  await unpinMountSources(context, record.sandbox_id)
  await rm(copiesFolder(context, record.run_id), { recursive: true, force: true })
}

/** Ends a run's virtual machine: the guest writes what it holds, and what is left then is killed. */
export async function shutDownVm({ clock, home, msb }: VmContext, { sandbox_id, started }: VmRunRecord): Promise<void> {
  const { name } = vmPaths(home, sandbox_id)
  if (started !== null && isAlive(started.vm)) await msb.stop(name, SWITCH_OFF_SECS)
  await killProcesses(await findVm(name), clock)
}

/** Where the copies that patches bring lie until the disk is made. */
export function copiesFolder({ records }: Pick<VmContext, 'records'>, run: RunId): string {
  return join(records.folderOf(run), 'copies')
}

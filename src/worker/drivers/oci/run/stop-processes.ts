import type { OciContext } from '../context.ts'
import { workloadCommand } from '../../shared/desired-run.ts'
import { isAlive, sendSignal } from '../../../processes/process-identity.ts'
import { killProcesses } from './release.ts'
import type { OciRunRecord, StartedContainer } from './run-records.ts'

const POLL_MS = 5
const RUNTIME_TIMEOUT_MS = 20_000
/** How long the shim may take to write the exit file once the sandbox's processes were killed. */
const SHIM_TIMEOUT_MS = 10_000

/**
 * Ends a run's processes: SIGTERM to each, then SIGKILL to those that are left after `graceMs`. In a sandbox without a
 * workload, the init is killed as soon as it is the only process. As process 1 without a handler for SIGTERM, it
 * doesn't get that signal from the kernel.
 */
export async function stopProcesses(context: OciContext, record: OciRunRecord, graceMs: number): Promise<void> {
  const { started } = record
  if (started === null) return
  if (started.runtime.name === 'crun' || started.runtime.name === 'runc')
    await stopContainer(context, record, { started, graceMs })
  else await stopByRuntime(context, record, { started, graceMs })
  await killProcesses(context, record.run_id)
  await waitFor(context, SHIM_TIMEOUT_MS, () => isOver(context, record, started))
}

type StopInput = { readonly started: StartedContainer; readonly graceMs: number }

async function stopContainer(
  context: OciContext,
  record: OciRunRecord,
  { started, graceMs }: StopInput,
): Promise<void> {
  const hasNoWorkload = record.image !== null && workloadCommand(record.spec, record.image) === null
  const others = async (): Promise<readonly number[]> => {
    const pids = await context.cgroups.pids(record.run_id)
    return hasNoWorkload ? pids.filter((pid) => pid !== started.init?.pid) : pids
  }
  for (const pid of await others()) sendSignal(pid, 'SIGTERM')
  await waitFor(context, graceMs, async () => (await others()).length === 0)
}

/** Stops processes through the runtime. Used for gVisor and virtual machines, whose processes the host can't signal. */
async function stopByRuntime(
  context: OciContext,
  record: OciRunRecord,
  { started, graceMs }: StopInput,
): Promise<void> {
  const kill = async (signal: string): Promise<void> => {
    const [file = '', ...args] = [...started.runtime.command, 'kill', '--all', record.run_id, signal]
    await context.commands.attempt(file, args, { timeoutMs: RUNTIME_TIMEOUT_MS })
  }
  await kill('TERM')
  await waitFor(context, graceMs, () => isOver(context, record, started))
  if (!isOver(context, record, started)) await kill('KILL')
}

function isOver(context: OciContext, record: OciRunRecord, started: StartedContainer): boolean {
  if (context.records.readExit(record.run_id) !== null) return true
  return started.shim === null || !isAlive(started.shim)
}

async function waitFor(context: OciContext, limitMs: number, isSo: () => boolean | Promise<boolean>): Promise<void> {
  const deadlineMs = context.clock.monotonicMs() + limitMs
  while (!(await isSo()) && context.clock.monotonicMs() < deadlineMs) await context.clock.sleep(POLL_MS)
}

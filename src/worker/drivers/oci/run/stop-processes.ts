import type { OciContext } from '../context.ts'
import { workloadCommand } from '../../shared/desired-run.ts'
import { isAlive, sendSignal } from '../../../processes/process-identity.ts'
import { killProcesses } from './release.ts'
import type { OciRunRecord, StartedContainer } from './run-records.ts'

const POLL_MS = 5
const RUNTIME_TIMEOUT_MS = 20_000
/** How long the shim may take to write down the end of a sandbox whose processes were killed. */
const SHIM_TIMEOUT_MS = 10_000

/**
 * Ends a run's processes: SIGTERM to each, SIGKILL to what is left after `graceMs`. An idle init, which no SIGTERM ends
 * (as first process it has no handler, so the kernel drops the signal), goes as soon as it is alone.
 */
export async function stopProcesses(context: OciContext, record: OciRunRecord, graceMs: number): Promise<void> {
  const { started } = record
  if (started === null) return
  if (started.runtime.name === 'crun' || started.runtime.name === 'runc')
    await endContainer(context, record, { started, graceMs })
  else await endByRuntime(context, record, { started, graceMs })
  await killProcesses(context, record.run_id)
  await waitFor(context, SHIM_TIMEOUT_MS, () => isOver(context, record, started))
}

type Ending = { readonly started: StartedContainer; readonly graceMs: number }

async function endContainer(context: OciContext, record: OciRunRecord, { started, graceMs }: Ending): Promise<void> {
  const isIdle = record.image !== null && workloadCommand(record.spec, record.image) === null
  const others = async (): Promise<readonly number[]> => {
    const pids = await context.cgroups.pids(record.run_id)
    return isIdle ? pids.filter((pid) => pid !== started.init?.pid) : pids
  }
  for (const pid of await others()) sendSignal(pid, 'SIGTERM')
  await waitFor(context, graceMs, async () => (await others()).length === 0)
}

/** gVisor's and a virtual machine's processes are not the host's: the runtime passes the signals on. */
async function endByRuntime(context: OciContext, record: OciRunRecord, { started, graceMs }: Ending): Promise<void> {
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

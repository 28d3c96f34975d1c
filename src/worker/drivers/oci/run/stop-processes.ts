import type { OciContext } from '../context.ts'
import { workloadCommand } from '../../shared/desired-run.ts'
import { isAlive, sendSignal } from '../../../processes/process-identity.ts'
import { killProcesses } from './release.ts'
import { containerIdOf, type OciRunRecord, type StartedContainer } from './run-records.ts'

/** SIGRTMIN+4, which asks systemd to power off (systemd(1)). An init without a handler for it is killed after the grace. */
const HALT_SIGNAL = 38
/** `runsc kill` knows no real-time signals (20240729), so a shell in the sandbox sends it. */
const HALT_COMMAND = `kill -${String(HALT_SIGNAL)} 1`
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
  await killProcesses(context, containerIdOf(record))
  await waitFor(context, SHIM_TIMEOUT_MS, () => isOver(context, record, started))
}

type StopInput = { readonly started: StartedContainer; readonly graceMs: number }

async function stopContainer(
  context: OciContext,
  record: OciRunRecord,
  { started, graceMs }: StopInput,
): Promise<void> {
  if (record.spec.init !== null) {
    if (started.init !== null && isAlive(started.init)) sendSignal(started.init.pid, HALT_SIGNAL)
    await waitFor(context, graceMs, async () => (await context.cgroups.pids(containerIdOf(record))).length === 0)
    return
  }
  const hasNoWorkload = record.image !== null && workloadCommand(record.spec, record.image) === null
  const others = async (): Promise<readonly number[]> => {
    const pids = await context.cgroups.pids(containerIdOf(record))
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
  const call = async (...options: readonly string[]): Promise<void> => {
    const [file = '', ...args] = [...started.runtime.command, ...options]
    await context.commands.attempt(file, args, { timeoutMs: RUNTIME_TIMEOUT_MS })
  }
  const kill = (signal: string): Promise<void> => call('kill', '--all', containerIdOf(record), signal)
  if (record.spec.init === null) await kill('TERM')
  else await call('exec', '-user', '0:0', '-cap', 'CAP_KILL', containerIdOf(record), '/bin/sh', '-c', HALT_COMMAND)
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

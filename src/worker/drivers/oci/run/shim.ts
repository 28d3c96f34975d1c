import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { RunId } from '../../../../domain/ids.ts'
import type { Clock } from '../../../../lib/clock.ts'
import { tryCommand } from '../../../../lib/run-command.ts'
import { StartError } from '../../../start-error.ts'
import { INIT_PATH } from '../environment.ts'
import { hideHostFolders, type Runtime } from './runtime.ts'
import type { Launcher } from './launcher.ts'
import {
  commandLineOf,
  identifyProcess,
  sendSignal,
  type ProcessIdentity,
} from '../../../processes/process-identity.ts'
import { readFileSyncOrNull, readFileOrNull } from '../../../../lib/files.ts'
import type { OciRunRecords } from './run-records.ts'
import type { WorkloadPipes } from './workload-pipes.ts'

/**
 * The shim: a shell that waits for the runtime and writes its exit code to a file. It outlives the worker. It keeps the
 * workload's pipes open, so that unread output is not lost. The reader kills it when the run has ended; once the run's
 * folder is gone, it exits by itself.
 */
const SHIM = `out=$1 err=$2 exit=$3; shift 3
exec 3<>"$out" 4<>"$err"
"$@" </dev/null >"$out" 2>"$err" 3>&- 4>&-
code=$?
echo "$code" >"$exit.tmp" && mv "$exit.tmp" "$exit"
while [ -p "$out" ]; do sleep 5 3>&- 4>&-; done`

/** Marks a shim's command line, so that it can be told from any other process. */
export const SHIM_NAME = 'sandyard-shim'

type ShimInput = {
  readonly run: RunId
  readonly runtime: Runtime
  readonly launcher: Launcher
  readonly records: OciRunRecords
  readonly bundle: object
  /** Where the run's file systems are mounted. */
  readonly rootBase: string
  /** Where the workload's output goes. */
  readonly pipes: WorkloadPipes
  readonly clock: Clock
  readonly signal: AbortSignal
}

/** The processes of a started run. Each is null when it ended before it could be identified. */
type RunProcesses = { readonly shim: ProcessIdentity | null; readonly init: ProcessIdentity | null }

const READY_TIMEOUT_MS = 30_000
/** The first interval between checks for the init. Later ones take a sixteenth of the time that has passed. */
const READY_POLL_MS = 2

/**
 * Starts a run's container and waits until its first process is the init. Rejects with `StartError` of kind `runtime`, or
 * with the signal's reason; by then no process of the run is left outside its cgroup.
 */
export async function startShim(input: ShimInput): Promise<RunProcesses> {
  const folder = input.records.folderOf(input.run)
  const exit = input.records.endFileOf(input.run)
  await writeFile(join(folder, 'config.json'), JSON.stringify(input.bundle), { mode: 0o600 })
  const options = ['--bundle', folder, '--pid-file', join(folder, 'pid')]
  const run = [...input.runtime.command, ...logOptions(input.runtime, folder), 'run', ...options, input.run]
  const shell = ['/bin/sh', '-c', SHIM, SHIM_NAME, input.pipes.stdout, input.pipes.stderr, exit, ...run]
  const { pid, ended } = await input.launcher.start(shell, ['/dev/null', '/dev/null', '/dev/null'])
  try {
    const init = await waitUntilReady(input)
    return { shim: identifyProcess(pid), init }
  } catch (error) {
    sendSignal(-pid, 'SIGKILL') // the shell, the runtime and what it forked are one process group
    await ended
    throw error
  }
}

/** How much of the runtime's log is reported, in characters. */
const RUNTIME_LOG_LIMIT = 500

/** The end of the runtime's own log. */
async function readRuntimeLog(folder: string): Promise<string> {
  return ((await readFileOrNull(join(folder, 'runtime.log'))) ?? '').trim().slice(-RUNTIME_LOG_LIMIT)
}

async function waitUntilReady(input: ShimInput): Promise<ProcessIdentity | null> {
  const folder = input.records.folderOf(input.run)
  const fromMs = input.clock.monotonicMs()
  for (let passedMs = 0; passedMs < READY_TIMEOUT_MS; passedMs = input.clock.monotonicMs() - fromMs) {
    // In this order: a run that is over wrote its process id before its exit, however short it was.
    const isOver = input.records.readExit(input.run) !== null
    const pid = readPid(join(folder, 'pid'))
    if (pid !== null && (await isReady(input, pid))) return identifyProcess(pid)
    if (isOver) {
      const message = await readRuntimeLog(folder)
      if (pid === null || message !== '') throw runtimeError(input, message)
      return null // it ran, and has ended already
    }
    await input.clock.sleep(Math.max(READY_POLL_MS, passedMs / 16), input.signal)
  }
  throw new StartError(
    'runtime',
    `${input.runtime.name} did not start the sandbox within ${String(READY_TIMEOUT_MS)} ms`,
  )
}

/** The owner gets the runtime's message without the worker's folders, and the log gets all of it. */
function runtimeError({ records, run, rootBase, runtime }: ShimInput, message: string): StartError {
  const forOwner = hideHostFolders(message, [records.folderOf(run), rootBase])
  return new StartError('runtime', `${runtime.name} could not start the sandbox: ${forOwner}`, new Error(message))
}

/** A container's process becomes the init at the moment it starts. gVisor and virtual machines have to be asked. */
async function isReady({ runtime, run }: ShimInput, pid: number): Promise<boolean> {
  if (runtime.name === 'crun' || runtime.name === 'runc') return commandLineOf(pid)[0] === INIT_PATH
  const [file = '', ...args] = [...runtime.command, 'state', run]
  const { code, stdout } = await tryCommand(file, args, { timeoutMs: READY_TIMEOUT_MS })
  return code === 0 && /"status":\s*"running"/.test(stdout)
}

function readPid(path: string): number | null {
  const text = readFileSyncOrNull(path)
  return text === null || !/^\d+\s*$/.test(text) ? null : Number(text)
}

function logOptions(runtime: Runtime, folder: string): readonly string[] {
  return ['--log', join(folder, 'runtime.log'), ...(runtime.name === 'runsc' ? ['--log-format=text'] : [])]
}

import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { RunId } from '../../../../../domain/ids.ts'
import type { Clock } from '../../../../../lib/clock.ts'
import { tryCommand } from '../../../../../lib/run-command.ts'
import { StartError } from '../../../../start-error.ts'
import { hideHostFolders, type Runtime } from './runtime.ts'
import type { Launcher } from './launcher.ts'
import {
  hasExecuted,
  identifyProcess,
  sendSignal,
  type ProcessIdentity,
} from '../../../../processes/process-identity.ts'
import { readFileSyncOrNull, readFileOrNull } from '../../../../../lib/files.ts'
import type { OciRunRecords } from '../run-records.ts'
import type { WorkloadPipes } from '../workload-pipes.ts'

/**
 * The shim: a shell that waits for the runtime and writes its exit code to a file. It outlives the worker. It keeps the
 * workload's pipes open, so that unread output is not lost. When the run has ended and its output was read, the worker
 * kills the shim. The shim also exits by itself if the run's folder is deleted. The runtime's standard input is an empty
 * pipe (a here-document), because a runtime gives this file to the container's user. That user must not own `/dev/null`.
 */
const SHIM = `out=$1 err=$2 exit=$3; shift 3
exec 3<>"$out" 4<>"$err"
"$@" <<END >"$out" 2>"$err" 3>&- 4>&-
END
code=$?
[ -e "$exit" ] || { echo "$code" >"$exit.tmp" && mv "$exit.tmp" "$exit"; }
while [ -p "$out" ]; do sleep 5 3>&- 4>&-; done`

/**
 * Executes the workload beside the image's own init, and writes its exit code as the run's: the end of the workload ends the
 * run. If a signal ended the workload, the init may have powered off, so the shim gets the time to write the init's code. The
 * same is true of code 1: the runtime fails with it if the init powers off before the workload has begun.
 */
const SHIM_BESIDE_INIT = `out=$1 err=$2 exit=$3; shift 3
"$@" <<END >"$out" 2>"$err"
END
code=$?
case $code in 1|129|1[3-9]?|2??) sleep 1 ;; esac
[ -e "$exit" ] || { echo "$code" >"$exit.workload" && mv "$exit.workload" "$exit"; }`

/** An argument in a shim's command line that distinguishes shims from all other processes. */
export const SHIM_NAME = 'sandyard-shim'

type ShimInput = {
  readonly run: RunId
  readonly runtime: Runtime
  readonly launcher: Launcher
  readonly records: OciRunRecords
  /** The `cgroup.procs` files of the cgroups in which the container starts: see `Cgroups.createForInit`. */
  readonly cgroups: readonly string[]
  readonly bundle: object
  /** The workload's process if the image's own init is the first one. */
  readonly processBesideInit: object | null
  /** Creates the cgroups for processes that serve commands: see `Cgroups.createForCommands`. */
  readonly commandCgroups: () => readonly string[]
  /** The folder in which the run's file systems are mounted. */
  readonly rootBase: string
  /** The pipes that the workload writes its output to. */
  readonly pipes: WorkloadPipes
  readonly clock: Clock
  readonly signal: AbortSignal
}

/** The processes of a started run. A process is null if it ended before it could be identified. */
type RunProcesses = { readonly shim: ProcessIdentity | null; readonly init: ProcessIdentity | null }

const READY_TIMEOUT_MS = 30_000
/**
 * The shortest interval between two checks whether the init runs. Later intervals are a sixteenth of the time waited so
 * far.
 */
const READY_POLL_MS = 2

/**
 * Starts a run's container and waits until its first process executes its program. Rejects with `StartError` of reason `runtime`, or
 * with the signal's reason. When it rejects, no process of the run is left outside the run's cgroup.
 */
export async function startShim(input: ShimInput): Promise<RunProcesses> {
  const folder = input.records.folderOf(input.run)
  const exit = input.records.endFileOf(input.run)
  await writeFile(join(folder, 'config.json'), JSON.stringify(input.bundle), { mode: 0o600 })
  const options = ['--bundle', folder, '--pid-file', join(folder, 'pid')]
  const run = [...input.runtime.command, ...logOptions(input.runtime, folder), 'run', ...options, input.run]
  const shell = ['/bin/sh', '-c', SHIM, SHIM_NAME, input.pipes.stdout, input.pipes.stderr, exit, ...run]
  const { pid, ended } = await input.launcher.start(shell, ['/dev/null', '/dev/null', '/dev/null'], {
    cgroups: input.cgroups,
  })
  try {
    const init = await waitUntilReady(input)
    if (input.processBesideInit !== null && init !== null) await startBesideInit(input, input.processBesideInit)
    return { shim: identifyProcess(pid), init }
  } catch (error) {
    sendSignal(-pid, 'SIGKILL') // the shell, the runtime and the runtime's children are one process group
    await ended
    throw error
  }
}

async function startBesideInit(input: ShimInput, process: object): Promise<void> {
  const { records, run, runtime, pipes, launcher } = input
  const spec = join(records.folderOf(run), 'workload.json')
  await writeFile(spec, JSON.stringify(process), { mode: 0o600 })
  const exec = [...runtime.command, 'exec', '--process', spec, run]
  const exit = records.endFileOf(run)
  const shell = ['/bin/sh', '-c', SHIM_BESIDE_INIT, SHIM_NAME, pipes.stdout, pipes.stderr, exit, ...exec]
  await launcher.start(shell, ['/dev/null', '/dev/null', '/dev/null'], { cgroups: input.commandCgroups() })
}

/** How many characters of the runtime's log are reported. */
const RUNTIME_LOG_LIMIT = 500

/** Reads the end of the runtime's own log. */
async function readRuntimeLog(folder: string): Promise<string> {
  return ((await readFileOrNull(join(folder, 'runtime.log'))) ?? '').trim().slice(-RUNTIME_LOG_LIMIT)
}

async function waitUntilReady(input: ShimInput): Promise<ProcessIdentity | null> {
  const folder = input.records.folderOf(input.run)
  const fromMs = input.clock.monotonicMs()
  for (let passedMs = 0; passedMs < READY_TIMEOUT_MS; passedMs = input.clock.monotonicMs() - fromMs) {
    // Read the exit file before the process id: even a very short run writes its process id before its exit file.
    const isOver = input.records.readExit(input.run) !== null
    const pid = readPid(join(folder, 'pid'))
    if (pid !== null && (await isReady(input, pid))) return identifyProcess(pid)
    if (isOver) {
      const message = await readRuntimeLog(folder)
      if (pid === null || message !== '') throw runtimeError(input, message)
      return null // the run started and has already ended
    }
    await input.clock.sleep(Math.max(READY_POLL_MS, passedMs / 16), input.signal)
  }
  throw new StartError(
    'runtime',
    `${input.runtime.name} did not start the sandbox within ${String(READY_TIMEOUT_MS)} ms`,
  )
}

/**
 * Returns the error for a failed start. The sandbox's owner sees the runtime's message without the worker's folders.
 * The worker's log gets the whole message.
 */
function runtimeError({ records, run, rootBase, runtime }: ShimInput, message: string): StartError {
  const forOwner = hideHostFolders(message, [records.folderOf(run), rootBase])
  return new StartError('runtime', `${runtime.name} could not start the sandbox: ${forOwner}`, new Error(message))
}

/**
 * Whether the container runs. With crun and runc, it runs once its first process, which they fork, executes a program. With
 * gVisor and virtual machines, the runtime is asked for the state.
 */
async function isReady({ runtime, run }: ShimInput, pid: number): Promise<boolean> {
  if (runtime.name === 'crun' || runtime.name === 'runc') return hasExecuted(pid)
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

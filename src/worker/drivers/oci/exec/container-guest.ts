import { existsSync, mkdtempSync, readFileSync } from 'node:fs'
import { rm, writeFile } from 'node:fs/promises'
import type { Socket } from 'node:net'
import { join } from 'node:path'
import { hasErrorCode } from '../../../../lib/error-code.ts'
import type { Log } from '../../../../lib/log.ts'
import { makeFilesClient } from '../../../channel/files-client.ts'
import { FileFailure } from '../../../channel/guest-files.ts'
import { isLoopback, type LoopbackConnections } from '../../../network/loopback-connections.ts'
import { ExecFailure, type Guest, type GuestProcess, type TcpTarget } from '../../../channel/guest.ts'
import type { SessionPermits } from '../../../channel/session-permits.ts'
import type { Container } from '../container.ts'
import { connectPipes, startExecOnPipes, withDefaultSize, type ExecCli, type TerminalSize } from './exec-cli.ts'
import type { ForkServers } from './fork-servers.ts'
import {
  makeProcess,
  makeToolProcessSpec,
  readProcessDefaults,
  type CheckedProcess,
  type ProcessDefaults,
  type ProcessSpec,
} from './process-spec.ts'
import { startExecOnTerminal } from './exec-terminal.ts'
import { exitCodeOf } from './exit-code.ts'
import { asDetachedProcess, asGuestProcess } from './guest-process.ts'
import type { FifoPool } from './fifo-pool.ts'
import type { Launcher } from '../run/runtime/launcher.ts'
import { makePidFileWaiter, type PidFileWaiter } from './pid-file.ts'
import { makeGvisorProcessGroup, innerPid, makeProcessGroup, type ProcessGroup } from './process-group.ts'
import type { PtyBinding } from './pty-binding.ts'
import { describeStartFailure } from './start-failure.ts'
import { startWithPermit } from './start-with-permit.ts'
import { connectLoopback } from './connect-loopback.ts'
import { connectByProcess } from '../../shared/tcp-stream.ts'
import { toolCommand } from '../../../../contract/workers/guest-tools.ts'

export type ContainerGuestDeps = {
  readonly log: Log
  /** Starts the runtime's command lines. */
  readonly launcher: Launcher
  readonly fifoPool: FifoPool
  /** Start processes without the runtime. Absent: the runtime starts every process. */
  readonly forkServers?: ForkServers
  /** Limits how many sessions are open at once. */
  readonly sessions: SessionPermits
  /** Opens connections to loopback addresses of containers. Absent: a process in the container makes each connection. */
  readonly loopback?: LoopbackConnections
  /** The result of `loadPtyBinding`. If it is null, script(1) creates terminals. */
  readonly pty: PtyBinding | null
  /** How long a runtime may take to start a process. `START_TIMEOUT_MS` by default. */
  readonly startTimeoutMs?: number
}

/** A guest that may also connect without a process in the container. */
export type ContainerGuest = Guest & {
  /** As `connect`, with a socket of this process. Resolves with null where only a process in the container can connect. */
  connectSocket(target: TcpTarget, signal: AbortSignal): Promise<Socket | null>
}

/**
 * A start that takes longer means that the container or the machine is frozen, or that a process in the sandbox stopped the
 * new one with SIGSTOP.
 */
const START_TIMEOUT_MS = 30_000

/**
 * Creates a guest, which runs processes in a container by its fork server or by the runtime's `exec`. It serves any number of
 * channels. The worker must be root, and `runDir` must contain the container's bundle.
 */
export function makeContainerGuest(container: Container, deps: ContainerGuestDeps): ContainerGuest {
  const { fifoPool, log } = deps
  const isGvisor = container.runtimeName === 'runsc'
  const terminals = { ...deps, commandCgroups: container.commandCgroups, usesOuterTerminal: isGvisor }
  let base: ProcessDefaults | null = null
  let processFiles: ProcessFiles | null = null
  let count = 0

  const readBase = (): ProcessDefaults =>
    (base ??= deps.forkServers?.defaultsOf(container) ?? readProcessDefaults(container.runDir))
  const startCli = async (files: ExecFiles, tty: TerminalSize | null): Promise<ExecCli> => {
    try {
      if (tty !== null) return await startExecOnTerminal(terminals, execCommand(container, files), tty)
      if (!detaches(container)) return await startExecOnPipes(terminals, execCommand(container, files))
      return await startExecOnPipes(terminals, execCommand(container, files, ['--detach']), { pidFile: files.pid })
    } catch (error) {
      if (container.commandCgroups.every((path) => existsSync(path))) throw error
      throw new ExecFailure('other', 'the sandbox has ended') // its cgroups were removed
    }
  }
  const launch = async (
    { pidFiles, ...files }: ExecFiles & Pick<ProcessFiles, 'pidFiles'>,
    spec: ProcessSpec,
    tty: TerminalSize | null,
  ): Promise<GuestProcess> => {
    await writeFile(files.spec, JSON.stringify(spec), { mode: 0o600 })
    const describeMemoryKill = container.watchMemory()
    const execCli = await startCli(files, tty)
    const timer = setTimeout(() => {
      killCli(execCli)
    }, deps.startTimeoutMs ?? START_TIMEOUT_MS)
    try {
      if (tty === null && detaches(container)) {
        return await asDetachedProcess(execCli, container, { log, describeMemoryKill })
      }
      const pid = await pidFiles.wait(files.pid, execCli.ended)
      if (pid === null) throw await describeStartFailure(execCli, container)
      // gVisor has its own process ids. The process has no id on the host, so `pid` is that of the `exec` command.
      const inner = isGvisor ? await pidFiles.wait(files.innerPid, execCli.ended) : innerPid(pid)
      if (isGvisor && inner === null) throw await describeStartFailure(execCli, container)
      execCli.onProcessStarted()
      const started = { execCli, pid, inner: inner ?? pid, describeMemoryKill }
      const sent = new Set<number>()
      const group = isGvisor
        ? makeGvisorProcessGroup(container, started.inner, log)
        : makeProcessGroup(container.initPid, { cli: execCli.pid, process: pid }, log)
      return asGuestProcess(started, notingSignals(group, sent), (exit) =>
        isGvisor && isGone(container.initPid) ? -1 : exitCodeOf(exit, sent),
      )
    } catch (error) {
      killCli(execCli)
      for (const stream of [execCli.stdin, execCli.stdout, execCli.stderr]) stream?.destroy()
      throw error
    } finally {
      clearTimeout(timer)
    }
  }

  // The permit comes first: to make a process, files of the sandbox are read, which may take long.
  const start = (make: () => Promise<CheckedProcess>, tty: TerminalSize | null): Promise<GuestProcess> =>
    startWithPermit(deps.sessions, container, async () => startProcess(await make(), tty))
  const startTool = (spec: ProcessSpec): Promise<GuestProcess> =>
    start(() => Promise.resolve({ spec, check: () => Promise.resolve() }), null) // the programs of the toolbox are there
  const startByServer = async (spec: ProcessSpec): Promise<GuestProcess | null> => {
    const starter = detaches(container) ? await deps.forkServers?.starterOf(container, spec) : null
    if (starter === null || starter === undefined) return null
    const describeMemoryKill = container.watchMemory()
    const execCli = await connectPipes(fifoPool, starter).catch((error: unknown) => {
      log.debug({ error, container_id: container.id }, 'a fork server started no process; the runtime does')
      return null
    })
    return execCli === null ? null : await asDetachedProcess(execCli, container, { log, describeMemoryKill })
  }
  const startProcess = async ({ spec, check }: CheckedProcess, tty: TerminalSize | null): Promise<GuestProcess> => {
    const started = await startByServer(spec)
    if (started !== null) return started
    await check() // the runtime would not tell the reason
    const { folder, pidFiles } = (processFiles ??= makeProcessFiles(container))
    const name = String(count++)
    const files = {
      spec: join(folder, `${name}.json`),
      pid: join(folder, `${name}.pid`),
      innerPid: join(folder, `${name}.inner`),
    }
    try {
      return await launch({ ...files, pidFiles }, spec, tty)
    } finally {
      await Promise.all(Object.values(files).map((path) => rm(path, { force: true })))
    }
  }

  const connectSocket: ContainerGuest['connectSocket'] = async (target, signal) => {
    const { loopback, sessions } = deps
    const { netnsPath } = readBase()
    // gVisor has loopback devices of its own, which are not in the namespace.
    if (loopback === undefined || !detaches(container) || netnsPath === null || !isLoopback(target.host)) return null
    return await connectLoopback({ loopback, sessions }, { container, netnsPath }, target, signal)
  }

  return {
    connectSocket,
    async exec(request) {
      const tty = request.tty === null ? null : withDefaultSize(request.tty)
      const isUnused = deps.forkServers?.isUnused(container.id) ?? false
      const input = { base: readBase(), request: { ...request, tty }, isUnused }
      return await start(() => makeProcess(container, input), tty)
    },
    async openFiles() {
      const spec = makeToolProcessSpec(readBase(), toolCommand('files.pl', [process.arch]))
      if (spec === null) throw new FileFailure(`files: ${NOT_OFFERED}`)
      try {
        return makeFilesClient(await startTool(spec))
      } catch (error) {
        if (!(error instanceof ExecFailure)) throw error
        throw new FileFailure(`files: ${error.message}`, { cause: error })
      }
    },
    async connect(target, signal) {
      const socket = await connectSocket(target, signal)
      if (socket !== null) return socket
      const run = async (args: readonly string[]): Promise<GuestProcess> => {
        const spec = makeToolProcessSpec(readBase(), toolCommand('tcp.pl', args))
        if (spec === null) throw new ExecFailure('other', NOT_OFFERED)
        return await startTool(spec)
      }
      return await connectByProcess(run, target, signal)
    },
  }
}

/**
 * The error for a sandbox without a toolbox. An earlier version of the worker started the sandbox, or the machine had
 * no perl when the sandbox started.
 */
const NOT_OFFERED = 'Operation not supported (os error 95)'

/** The folder for the files of a container's `exec` commands, made with the first one. */
type ProcessFiles = { readonly folder: string; readonly pidFiles: PidFileWaiter }

function makeProcessFiles({ runDir }: Container): ProcessFiles {
  try {
    const folder = mkdtempSync(join(runDir, 'exec-'))
    return { folder, pidFiles: makePidFileWaiter(folder) }
  } catch (error) {
    if (!hasErrorCode(error, 'ENOENT')) throw error
    throw new ExecFailure('other', 'the sandbox has ended') // its folder was removed
  }
}

type ExecFiles = { readonly spec: string; readonly pid: string; readonly innerPid: string }

function execCommand(
  { runtime, runtimeName, id }: Container,
  files: ExecFiles,
  options: readonly string[] = [],
): readonly string[] {
  const inner = runtimeName === 'runsc' ? ['--internal-pid-file', files.innerPid] : []
  return [...runtime, 'exec', ...options, '--process', files.spec, '--pid-file', files.pid, ...inner, id]
}

/**
 * Whether a process without a terminal needs no `exec` command once it has started: the launcher waits for it instead.
 * This saves the machine a process for each command. With gVisor the process is not one of the machine, so its `exec`
 * command waits for it. With a terminal, `exec` copies between two terminals.
 */
function detaches({ runtimeName }: Container): boolean {
  return runtimeName === 'crun' || runtimeName === 'runc'
}

/** Kills a command that has not started its process, with all processes that the command forked. */
function killCli(execCli: ExecCli): void {
  if (!execCli.isRunning()) return
  try {
    process.kill(-execCli.pid, 'SIGKILL')
  } catch (error) {
    if (!hasErrorCode(error, 'ESRCH')) throw error // it has ended meanwhile
  }
}

/** Adds each signal that is sent to a group to `sent`. */
function notingSignals(group: ProcessGroup, sent: Set<number>): ProcessGroup {
  return {
    signal(signal) {
      sent.add(signal)
      group.signal(signal)
    },
  }
}

/**
 * Whether a process has ended or is a zombie. Used for the container's first process: if it is gone, the exit code of
 * an `exec` command means nothing.
 */
function isGone(pid: number): boolean {
  try {
    return /^State:\s+[ZX]/m.test(readFileSync(`/proc/${String(pid)}/status`, 'utf8'))
  } catch {
    return true
  }
}

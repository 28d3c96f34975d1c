import { readFileSync } from 'node:fs'
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Log } from '../../../../lib/log.ts'
import { makeFilesClient } from '../../../channel/files-client.ts'
import { FileFailure } from '../../../channel/guest-files.ts'
import { ExecFailure, type Guest, type GuestProcess } from '../../../channel/guest.ts'
import type { Container } from '../container.ts'
import { startExecOnPipes, type ExecCli, type TerminalSize } from './exec-cli.ts'
import {
  makeProcessSpec,
  makeToolProcessSpec,
  readProcessDefaults,
  type ProcessDefaults,
  type ProcessSpec,
} from './process-spec.ts'
import { startExecOnTerminal } from './exec-terminal.ts'
import { makeFifoPool } from './fifo-pool.ts'
import type { Launcher, RuntimeExit } from '../run/launcher.ts'
import { hideHostFolders } from '../run/runtime.ts'
import { makePidFileWaiter } from './pid-file.ts'
import { makeGvisorProcessGroup, innerPid, makeProcessGroup, type ProcessGroup } from './process-group.ts'
import type { PtyBinding } from './pty-binding.ts'
import { connectByProcess } from './tcp-stream.ts'
import { toolCommand } from '../rootfs/toolbox.ts'
import { constants } from 'node:os'

export type ContainerGuestDeps = {
  readonly log: Log
  /** Starts the runtime's command lines. */
  readonly launcher: Launcher
  /** From `loadPtyBinding`; null makes terminals by script(1). */
  readonly pty: PtyBinding | null
}

/** A runtime that has not started a process after this will not: its container is frozen, or the machine is. */
const START_TIMEOUT_MS = 30_000

/** The size of a terminal whose request has a zero in it, which programs can't draw on. */
const USUAL_SIZE: TerminalSize = { rows: 24, cols: 80 }

/**
 * Runs processes in a container by its runtime's `exec`. One guest serves any number of channels of its container; make
 * one for each container, since it keeps pipes ready. Needs root, and the container's bundle in `runDir`.
 */
export function makeContainerGuest(container: Container, deps: ContainerGuestDeps): Guest {
  const fifoPool = makeFifoPool(container.runDir, deps.log)
  const pidFiles = makePidFileWaiter(fifoPool.folder)
  const isGvisor = container.runtimeName === 'runsc'
  const terminals = { ...deps, fifoPool, usesOuterTerminal: isGvisor }
  let base: Promise<ProcessDefaults> | null = null
  let count = 0

  const readBase = (): Promise<ProcessDefaults> => {
    base ??= readProcessDefaults(container.runDir).catch((error: unknown) => {
      base = null
      throw error
    })
    return base
  }
  const launch = async (files: ExecFiles, plan: ProcessSpec, tty: TerminalSize | null): Promise<GuestProcess> => {
    await writeFile(files.spec, JSON.stringify(plan), { mode: 0o600 })
    const command = execCommand(container, files)
    const carrier =
      tty === null ? await startExecOnPipes(terminals, command) : await startExecOnTerminal(terminals, command, tty)
    const timer = setTimeout(() => {
      killCli(carrier)
    }, START_TIMEOUT_MS)
    try {
      const pid = await pidFiles.wait(files.pid, carrier.ended)
      if (pid === null) throw await explain(carrier, container)
      // gVisor's process ids are its own: the host's is that of the command line that stands for the process.
      const inner = isGvisor ? await pidFiles.wait(files.innerPid, carrier.ended) : innerPid(pid)
      if (isGvisor && inner === null) throw await explain(carrier, container)
      carrier.onProcessStarted()
      const seen = { carrier, pid, inner: inner ?? pid }
      return isGvisor
        ? adopt(seen, makeGvisorProcessGroup(container, seen.inner, deps.log), () => isGone(container.initPid))
        : adopt(seen, makeProcessGroup(container.initPid, { cli: carrier.pid, process: pid }), () => false)
    } catch (error) {
      killCli(carrier)
      for (const stream of [carrier.stdin, carrier.stdout, carrier.stderr]) stream?.destroy()
      throw error
    } finally {
      clearTimeout(timer)
    }
  }

  const start = async (plan: ProcessSpec, tty: TerminalSize | null): Promise<GuestProcess> => {
    const name = String(count++)
    const files = {
      spec: join(fifoPool.folder, `${name}.json`),
      pid: join(fifoPool.folder, `${name}.pid`),
      innerPid: join(fifoPool.folder, `${name}.inner`),
    }
    try {
      return await launch(files, plan, tty)
    } finally {
      await Promise.all(Object.values(files).map((path) => rm(path, { force: true })))
    }
  }

  return {
    async exec(request) {
      const tty = request.tty === null ? null : sizeOf(request.tty)
      return await start(await makeProcessSpec(container, await readBase(), { ...request, tty }), tty)
    },
    async openFiles() {
      const plan = makeToolProcessSpec(await readBase(), toolCommand('files.pl', [process.arch]))
      if (plan === null) throw new FileFailure(`files: ${NOT_OFFERED}`)
      try {
        return makeFilesClient(await start(plan, null))
      } catch (error) {
        if (!(error instanceof ExecFailure)) throw error
        throw new FileFailure(`files: ${error.message}`, { cause: error })
      }
    },
    async connect(target, signal) {
      const run = async (args: readonly string[]): Promise<GuestProcess> => {
        const plan = makeToolProcessSpec(await readBase(), toolCommand('tcp.pl', args))
        if (plan === null) throw new ExecFailure('other', NOT_OFFERED)
        return await start(plan, null)
      }
      return await connectByProcess(run, target, signal)
    },
  }
}

/** Of a sandbox that was started by an earlier version, or while the machine had no perl. */
const NOT_OFFERED = 'Operation not supported (os error 95)'

type ExecFiles = { readonly spec: string; readonly pid: string; readonly innerPid: string }

function execCommand({ runtime, runtimeName, id }: Container, files: ExecFiles): readonly string[] {
  const inner = runtimeName === 'runsc' ? ['--internal-pid-file', files.innerPid] : []
  return [...runtime, 'exec', '--process', files.spec, '--pid-file', files.pid, ...inner, id]
}

/** Ends a command line that has not started its process, with what it may have forked. */
function killCli(carrier: ExecCli): void {
  if (carrier.isRunning()) process.kill(-carrier.pid, 'SIGKILL')
}

function sizeOf(tty: TerminalSize): TerminalSize {
  return tty.rows === 0 || tty.cols === 0 ? USUAL_SIZE : tty
}

/** A process that was started: its id on the host, of which its terminal is found, and in the container. */
type Started = { readonly carrier: ExecCli; readonly pid: number; readonly inner: number }

function adopt({ carrier, pid, inner }: Started, group: ProcessGroup, isCutShort: () => boolean): GuestProcess {
  const sent = new Set<number>()
  return {
    pid: inner,
    stdin: carrier.stdin,
    stdout: carrier.stdout,
    stderr: carrier.stderr,
    resize(rows, cols) {
      carrier.resize(pid, sizeOf({ rows, cols }))
    },
    signal(signal) {
      sent.add(signal)
      group.signal(signal)
    },
    exited: carrier.ended.then((exit) => (isCutShort() ? -1 : exitCodeOf(exit, sent))),
  }
}

/** Whether a process has ended, its zombie not counted: a command that was cut short with it tells no code of its own. */
function isGone(pid: number): boolean {
  try {
    return /^State:\s+[ZX]/m.test(readFileSync(`/proc/${String(pid)}/status`, 'utf8'))
  } catch {
    return true
  }
}

/** The most of a runtime's last words that is told to the client, in bytes. */
const LAST_WORDS_BYTES = 1000

/** What to say when a runtime ended without having started the process, though all that can be checked was fine. */
async function explain(carrier: ExecCli, { runDir, rootPath }: Container): Promise<ExecFailure> {
  const output = carrier.stderr ?? carrier.stdout
  const chunks: Buffer[] = []
  for await (const chunk of output) {
    if (chunk instanceof Buffer) chunks.push(chunk)
  }
  const said = hideHostFolders(Buffer.concat(chunks).toString('utf8'), [runDir, rootPath])
    .trim()
    .slice(-LAST_WORDS_BYTES)
  return new ExecFailure(
    'other',
    `the runtime could not start the process: ${said === '' ? 'it did not say why' : said}`,
  )
}

/** The guests of a worker's containers, one for each, so that the pipes it keeps ready serve every channel. */
export type ContainerGuests = { of(container: Container): Guest }

/** The most that are kept; one that is dropped is made again when it is asked for. */
const KEPT_LIMIT = 2_048

/** Makes guests when they are first asked for. */
export function makeContainerGuests(deps: ContainerGuestDeps): ContainerGuests {
  const guests = new Map<string, Guest>()
  return {
    of(container) {
      const key = `${container.id} ${String(container.initPid)}`
      const guest = guests.get(key) ?? makeContainerGuest(container, deps)
      guests.delete(key)
      guests.set(key, guest)
      const [oldest] = guests.keys()
      if (guests.size > KEPT_LIMIT && oldest !== undefined) guests.delete(oldest)
      return guest
    },
  }
}

/** Added to a signal's number by runtimes and shells when they tell it as an exit code. */
const SIGNAL_BASE = 128

/** Signals that a shell passes on as its own exit code only rarely: they end the process that gets them. */
const DEADLY: ReadonlySet<number> = new Set([
  constants.signals.SIGILL,
  constants.signals.SIGABRT,
  constants.signals.SIGBUS,
  constants.signals.SIGFPE,
  constants.signals.SIGKILL,
  constants.signals.SIGSEGV,
  constants.signals.SIGSYS,
])

/**
 * The exit code in the agent protocol's terms: -1 when a signal ended the process. A runtime tells death by signal n as
 * code 128 + n, which is also what a shell exits with after a child died so. It counts as death when the signal was
 * sent through the channel or is one that programs die of; else (130 of an interactive shell) the code stands.
 */
export function exitCodeOf(exit: RuntimeExit, sent: ReadonlySet<number>): number {
  if (exit.code === null) return -1
  const signal = exit.code - SIGNAL_BASE
  return sent.has(signal) || DEADLY.has(signal) ? -1 : exit.code
}

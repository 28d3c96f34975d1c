import { join } from 'node:path'
import type { Log } from '../../../../../lib/log.ts'
import { encodeFields, makeProgramStarter } from '../../../../processes/perl-process.ts'

/**
 * Starts programs from a small helper process. Node would fork the whole worker for every command in every sandbox. The
 * worker stops during a fork: for 0.7 ms with 50 MiB in memory, 3.4 ms with 200 MiB and 14.5 ms with 600 MiB (2026-11).
 */
export type Launcher = {
  /**
   * Starts a command line in `/` and in a new session. Looks up its program on PATH. `files` are opened as its standard
   * input, output and error, and as readable descriptors from 3 on. Each file must open without blocking. Rejects when
   * the program can't be started. The error message tells the reason.
   */
  start(
    command: readonly string[],
    files: readonly [string, string, string, ...string[]],
    options?: LaunchOptions,
  ): Promise<Launched>
  /**
   * Starts a program that leaves a fork server of a sandbox (`perl/guest/fork-server.pl`). The standard streams of both are one
   * socket, by which the launcher asks for commands. Rejects like `start`.
   */
  startForkServer(
    command: readonly string[],
    options: LaunchOptions & { readonly pidFile: string },
  ): Promise<ForkServerProcess>
  /** Ends the helper process. The programs that it started keep running, except fork servers. */
  close(): void
}

export type LaunchOptions = {
  /** The `cgroup.procs` files of the cgroups that the program's process joins before the program runs. */
  readonly cgroups?: readonly string[]
  /**
   * Says that the program starts another process, writes that process's id to this file and exits: a runtime's `exec
   * --detach`. The helper process then waits for the other process.
   */
  readonly pidFile?: string
}

/** A program that was started, and with `pidFile` the process that it left. */
export type Launched = {
  /** The program's process id, which is also the id of its session and process group. */
  readonly pid: number
  /** With `pidFile`: resolves with the process that the program left, or with null if it left none. Never rejects. */
  readonly left: Promise<LeftProcess | null>
  isRunning(): boolean
  /**
   * Resolves once the program, and the process that it left, were reaped. Resolves with a null code if the helper
   * process is gone. Never rejects.
   */
  readonly ended: Promise<RuntimeExit>
}

/** A program that leaves a fork server. `left` and `ended` tell of the server. */
export type ForkServerProcess = Launched & {
  /**
   * Lets the server start a command with `files` as its standard streams, each of which must open without blocking. `pid` of the result
   * is that of the command, and `left` resolves with its ids. Rejects if the command was not started, and then it never will be.
   */
  run(request: Buffer, files: readonly [string, string, string]): Promise<Launched>
}

/** A process that a program left. */
export type LeftProcess = {
  readonly pid: number
  /** Its id in its innermost namespace. Null if it had ended before the id could be read. */
  readonly innerPid: number | null
}

/** How a program ended: with an exit code, or with null if a signal ended it or the helper process was gone before. */
export type RuntimeExit = { readonly code: number | null }

const SCRIPT = join(import.meta.dirname, '../../../../perl/launcher.pl')

/**
 * Creates a launcher. The helper process starts with the first program, and again if it was killed. With `deadlineFile`, the
 * launcher starts no program once the renew deadline has passed.
 */
export function makeLauncher(log: Log, deadlineFile: string | null = null): Launcher {
  const perl = makeProgramStarter<RuntimeExit>({
    script: SCRIPT,
    args: deadlineFile === null ? [] : [deadlineFile],
    log,
    exitOf: (text) => ({ code: text === '-' ? null : Number(text) }),
  })
  const launch = (request: Buffer): { readonly number: number; readonly launched: Promise<Launched> } => {
    const { promise: ended, resolve: tellEnd } = Promise.withResolvers<RuntimeExit>()
    const { promise: left, resolve: tellLeft } = Promise.withResolvers<LeftProcess | null>()
    const { promise: launched, resolve, reject } = Promise.withResolvers<Launched>()
    let isRunning = true
    const end = (exit: RuntimeExit): void => {
      isRunning = false
      tellLeft(null)
      tellEnd(exit)
    }
    const number = perl.start(request, {
      started: (pid) => {
        resolve({ pid, left, ended, isRunning: () => isRunning })
      },
      detached: (text) => {
        const [pid = '', inner = '-'] = text.split(' ')
        tellLeft({ pid: Number(pid), innerPid: inner === '-' ? null : Number(inner) })
      },
      failed: (error) => {
        reject(error)
        end({ code: null })
      },
      ended: end,
    })
    return { number, launched }
  }
  return {
    start: (command, files, { cgroups = [], pidFile = '' } = {}) =>
      launch(encodeRequest('p', { pidFile, files, cgroups, command })).launched,
    async startForkServer(command, { cgroups = [], pidFile }) {
      const { number, launched } = launch(encodeRequest('s', { pidFile, files: [], cgroups, command }))
      return {
        ...(await launched),
        run: (request, files) => launch(encodeCommand(number, request, files)).launched,
      }
    },
    close: perl.close,
  }
}

type StartRequest = Readonly<Record<'files' | 'cgroups' | 'command', readonly string[]>> & { readonly pidFile: string }

function encodeRequest(kind: 'p' | 's', { pidFile, files, cgroups, command }: StartRequest): Buffer {
  const counts = Buffer.from([files.length, cgroups.length])
  return Buffer.concat([Buffer.from(kind), counts, encodeFields([pidFile, ...files, ...cgroups, ...command])])
}

function encodeCommand(server: number, request: Buffer, files: readonly string[]): Buffer {
  const number = Buffer.alloc(4)
  number.writeUInt32BE(server)
  return Buffer.concat([Buffer.from('c'), number, encodeFields(files), request])
}

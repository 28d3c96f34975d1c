import type { Readable, Writable } from 'node:stream'
import type { FifoPool } from './fifo-pool.ts'
import type { Launched, Launcher } from '../run/runtime/launcher.ts'

/** A running `exec` command of a runtime. It runs one process in the container and connects that process's streams. */
export type ExecCli = Launched & {
  readonly stdin: Writable
  readonly stdout: Readable
  /** Null for a process with a terminal, whose whole output is in `stdout`. */
  readonly stderr: Readable | null
  /** Call this once the process in the container runs. It then releases what was only needed to start the process. */
  onProcessStarted(): void
  /** Sets the size of the terminal of the process with this host id. Does nothing without a terminal. */
  resize(pid: number, size: TerminalSize): void
}

/** The size of a terminal in characters. */
export type TerminalSize = { readonly rows: number; readonly cols: number }

/** The terminal size that replaces a requested size of zero, on which programs can't draw. */
const DEFAULT_SIZE: TerminalSize = { rows: 24, cols: 80 }

/** Returns the size, or the default for one of zero. */
export function withDefaultSize(tty: TerminalSize): TerminalSize {
  return tty.rows === 0 || tty.cols === 0 ? DEFAULT_SIZE : tty
}

/** What is needed to start an `exec` command. */
export type ExecCliDeps = {
  readonly fifoPool: FifoPool
  readonly launcher: Launcher
  /** The cgroups for the command: see `Container`. */
  readonly commandCgroups: readonly string[]
}

type PipesOptions = {
  /** The files that the command gets as descriptors from 3 on. */
  readonly more?: readonly string[]
  /** The file in which a command that detaches writes the id of the process: see `Launcher`. */
  readonly pidFile?: string
}

/** Starts a command with a pipe for each standard stream. */
export async function startExecOnPipes(
  { fifoPool, launcher, commandCgroups }: ExecCliDeps,
  command: readonly string[],
  { more = [], ...options }: PipesOptions = {},
): Promise<ExecCli> {
  return await connectPipes(fifoPool, (files) =>
    launcher.start(command, [...files, ...more], { cgroups: commandCgroups, ...options }),
  )
}

/** Starts a program with a pipe for each standard stream. `start` gets the files of the program's ends. */
export async function connectPipes(
  fifoPool: FifoPool,
  start: (files: readonly [string, string, string]) => Promise<Launched>,
): Promise<ExecCli> {
  const stdin = await fifoPool.takePipe('to-child')
  const stdout = await fifoPool.takePipe('from-child')
  const stderr = await fifoPool.takePipe('from-child')
  const pipes = [stdin, stdout, stderr]
  try {
    return {
      ...(await start([stdin.path, stdout.path, stderr.path])),
      stdin: stdin.socket,
      stdout: stdout.socket,
      stderr: stderr.socket,
      onProcessStarted: () => {
        // nothing to do
      },
      resize: () => {
        // pipes have no size
      },
    }
  } catch (error) {
    for (const pipe of pipes) pipe.socket.destroy()
    throw error
  } finally {
    for (const pipe of pipes) pipe.closeChildEnd()
  }
}

import { spawn } from 'node:child_process'
import { closeSync } from 'node:fs'
import type { Readable, Writable } from 'node:stream'
import type { RuntimeExit } from './exec-status.ts'
import type { FifoPool } from './fifo-pool.ts'

/** A runtime's `exec` command line while it carries one process, with the process's streams. */
export type Carrier = Cli & {
  readonly stdin: Writable
  readonly stdout: Readable
  /** null when there is a terminal: all output is `stdout` then. */
  readonly stderr: Readable | null
  /** To be called once the process runs. */
  noteStarted(): void
  /** Tells the terminal of the process with this host id its size; does nothing without one. */
  resize(pid: number, size: TerminalSize): void
}

export type TerminalSize = { readonly rows: number; readonly cols: number }

/** Starts a command line whose process gets a pipe for each of its streams, and `more` as its descriptors from 3 on. */
export async function startPiped(
  pool: FifoPool,
  command: readonly string[],
  more: readonly number[] = [],
): Promise<Carrier> {
  const stdin = await pool.take('to-child')
  const stdout = await pool.take('from-child')
  const stderr = await pool.take('from-child')
  const pipes = [stdin, stdout, stderr]
  try {
    const cli = await spawnCli(command, [stdin.childFd, stdout.childFd, stderr.childFd, ...more])
    return {
      ...cli,
      stdin: stdin.socket,
      stdout: stdout.socket,
      stderr: stderr.socket,
      noteStarted: () => {
        // nothing waits for it
      },
      resize: () => {
        // pipes have no size
      },
    }
  } catch (error) {
    for (const pipe of pipes) pipe.socket.destroy()
    throw error
  } finally {
    for (const pipe of pipes) closeSync(pipe.childFd)
  }
}

/** A command line that runs. */
export type Cli = {
  /** Also the number of its session and process group. */
  readonly cliPid: number
  isRunning(): boolean
  readonly ended: Promise<RuntimeExit>
}

/** Starts a command line in a session of its own, so that signals for this process don't reach it. Rejects when it can't be. */
export async function spawnCli(command: readonly string[], stdio: readonly number[]): Promise<Cli> {
  const [file = '', ...args] = command
  const child = spawn(file, args, { stdio: [...stdio], detached: true, env: { PATH: process.env['PATH'] } })
  const ended = new Promise<RuntimeExit>((resolve) => {
    child.once('exit', (code) => {
      resolve({ code })
    })
  })
  if (child.pid === undefined) {
    const cause = await new Promise<Error>((resolve) => child.once('error', resolve))
    throw new Error(`${child.spawnfile} could not be started`, { cause })
  }
  return { cliPid: child.pid, ended, isRunning: () => child.exitCode === null && child.signalCode === null }
}

import type { Readable, Writable } from 'node:stream'
import type { FifoPool } from '../run/fifo-pool.ts'
import type { Launched, Launcher } from '../run/launcher.ts'

/** A runtime's `exec` command line while it carries one process, with the process's streams. */
export type Carrier = Launched & {
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

export type CarrierDeps = { readonly pool: FifoPool; readonly launcher: Launcher }

/** Starts a command line whose process gets a pipe for each of its streams, and `more` as its descriptors from 3 on. */
export async function startPiped(
  { pool, launcher }: CarrierDeps,
  command: readonly string[],
  more: readonly string[] = [],
): Promise<Carrier> {
  const stdin = await pool.take('to-child')
  const stdout = await pool.take('from-child')
  const stderr = await pool.take('from-child')
  const pipes = [stdin, stdout, stderr]
  try {
    return {
      ...(await launcher.start(command, [stdin.path, stdout.path, stderr.path, ...more])),
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
    for (const pipe of pipes) pipe.settle()
  }
}

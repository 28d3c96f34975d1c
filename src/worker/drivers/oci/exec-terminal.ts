import { spawn } from 'node:child_process'
import { closeSync, constants, openSync } from 'node:fs'
import { Readable, Writable } from 'node:stream'
import { ReadStream } from 'node:tty'
import type { Log } from '../../../lib/log.ts'
import { tryCommand } from '../../../lib/run-command.ts'
import { ExecFailure } from '../../channel/guest.ts'
import { spawnCli, watchCli } from './exec-carrier.ts'
import type { Carrier, TerminalSize } from './exec-carrier.ts'
import type { PtyBinding } from './pty-binding.ts'

/**
 * A process in a container with a terminal. The runtime makes the container's own terminal and carries its bytes to one
 * out here (runtime-notes 4.6). crun 1.8 doesn't pass a new size on, so it is set on the inner one, through the
 * process's own descriptors.
 */

export type TerminalDeps = {
  readonly log: Log
  readonly pty: PtyBinding | null
  /** Whether the command line makes no terminal within, and so needs the one out here as its own. */
  readonly isOnlyTerminal: boolean
}

/** What is read from a terminal before the client has taken it. */
const READ_BUFFER_BYTES = 256 * 1024
const STTY_TIMEOUT_MS = 5_000

/**
 * A session leader that opens a terminal has it as its own: Ctrl-C and a new size then reach the command line as
 * signals, which gVisor's passes on, having no other terminal within.
 */
const ON_OWN_TERMINAL = ['/bin/sh', '-c', 'exec <>"$0"; exec "$@"'] as const

/** Starts a command line on a terminal. Rejects with `ExecFailure` of kind `pty_setup_failed`. */
export async function startOnTerminal(
  deps: TerminalDeps,
  command: readonly string[],
  size: TerminalSize,
): Promise<Carrier> {
  try {
    return deps.pty === null
      ? await startByScript(deps, command, size)
      : await startNatively(deps, deps.pty, { command, size })
  } catch (error) {
    deps.log.error({ err: error }, 'a terminal could not be set up')
    throw new ExecFailure('pty_setup_failed', 'a terminal could not be set up', { stage: 'openpty' })
  }
}

async function startNatively(
  { log, isOnlyTerminal }: TerminalDeps,
  pty: PtyBinding,
  { command, size }: { readonly command: readonly string[]; readonly size: TerminalSize },
): Promise<Carrier> {
  const pair = pty.open(size.cols, size.rows)
  closeSync(pair.slave) // opened non-blocking, which programs don't expect; opening it again gives one that blocks
  const master = new ReadStream(pair.master)
  try {
    const slave = openSync(pair.pty, constants.O_RDWR | constants.O_NOCTTY)
    const cli = await spawnCli(isOnlyTerminal ? [...ON_OWN_TERMINAL, pair.pty, ...command] : command, [
      slave,
      slave,
      slave,
    ]).finally(() => {
      closeSync(slave)
    })
    return {
      ...cli,
      stdin: writableOver(master),
      stdout: readableOver(master),
      stderr: null,
      resize(pid, { rows, cols }) {
        try {
          const inner = openSync(innerTerminal(pid), constants.O_RDWR | constants.O_NOCTTY | constants.O_NONBLOCK)
          try {
            pty.resize(inner, cols, rows)
          } finally {
            closeSync(inner)
          }
        } catch (error) {
          log.debug({ err: error, pid }, 'a terminal could not be resized') // the process has ended or left its terminal
        }
      },
    }
  } catch (error) {
    master.destroy()
    throw error
  }
}

/** Without native code: script(1) of util-linux makes the outer terminal, stty(1) of coreutils sets sizes. */
async function startByScript(
  { log }: TerminalDeps,
  command: readonly string[],
  { rows, cols }: TerminalSize,
): Promise<Carrier> {
  const quoted = command.map((word) => `'${word.replaceAll("'", `'\\''`)}'`).join(' ')
  const child = spawn(
    'script',
    ['-qefc', `stty rows ${String(rows)} cols ${String(cols)}; exec ${quoted}`, '/dev/null'],
    {
      stdio: ['pipe', 'pipe', 'ignore'],
      detached: true,
      env: { PATH: process.env['PATH'], SHELL: '/bin/sh' },
    },
  )
  const cli = await watchCli(child)
  return {
    ...cli,
    stdin: child.stdin,
    stdout: child.stdout,
    stderr: null,
    resize(pid, { rows, cols }) {
      const args = ['-F', innerTerminal(pid), 'rows', String(rows), 'cols', String(cols)]
      tryCommand('stty', args, { timeoutMs: STTY_TIMEOUT_MS }).catch((error: unknown) => {
        log.debug({ err: error, pid }, 'a terminal could not be resized')
      })
    },
  }
}

function innerTerminal(pid: number): string {
  return `/proc/${String(pid)}/fd/0`
}

/**
 * The output of a terminal. Its end shows as the error EIO, with which a stream would drop what nobody has read yet; so
 * the bytes move to a stream of their own. `ReadStream` itself holds back no more than one piece.
 */
function readableOver(master: ReadStream): Readable {
  const output = new Readable({
    highWaterMark: READ_BUFFER_BYTES,
    read() {
      master.resume()
    },
    destroy(error, done) {
      master.destroy()
      done(error)
    },
  })
  master.on('data', (piece: Buffer) => {
    if (!output.push(piece)) master.pause()
  })
  master.on('error', () => {
    // EIO: nobody has the other side open any more
  })
  master.on('close', () => {
    output.push(null)
  })
  return output
}

/** Input for a terminal. What comes after its end is dropped: a terminal has no reader to be told of. */
function writableOver(master: ReadStream): Writable {
  return new Writable({
    write(piece: Buffer, _encoding, done) {
      if (master.destroyed) done()
      else {
        master.write(piece, () => {
          done()
        })
      }
    },
  })
}

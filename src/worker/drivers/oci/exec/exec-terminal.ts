import { closeSync, constants, openSync, readFileSync } from 'node:fs'
import { Readable, Writable } from 'node:stream'
import { ReadStream } from 'node:tty'
import { applyLatest } from '../../../../lib/turns/apply-latest.ts'
import type { Log } from '../../../../lib/log.ts'
import { tryCommand } from '../../../../lib/run-command.ts'
import { ExecFailure } from '../../../channel/guest.ts'
import { startExecOnPipes } from './exec-cli.ts'
import type { ExecCli, ExecCliDeps, TerminalSize } from './exec-cli.ts'
import type { PtyBinding } from './pty-binding.ts'

/**
 * Starts processes with a terminal. The runtime creates the inner terminal, in the container, and copies data between
 * it and an outer terminal on the host. crun 1.8 does not forward a new size from the outer terminal to the inner one.
 * This file therefore sets the size on the inner terminal, through the process's own descriptors. crun sets the first
 * size while the program starts. On a busy machine, a program that reads the size at once may see 0 rows. It then gets
 * SIGWINCH when the size is set.
 */

type ExecTerminalDeps = ExecCliDeps & {
  readonly log: Log
  readonly pty: PtyBinding | null
  /** Whether the process uses the outer terminal directly, because the runtime creates no inner one. */
  readonly usesOuterTerminal: boolean
}

/** How many bytes are read from a terminal ahead of the client. */
const READ_BUFFER_BYTES = 256 * 1024
const STTY_TIMEOUT_MS = 5_000

/**
 * A shell command that makes the outer terminal the controlling terminal of the command. A session leader gets a controlling
 * terminal by opening it. Ctrl-C and new sizes then reach the command as signals, which gVisor's command forwards.
 */
const ON_OWN_TERMINAL = ['/bin/sh', '-c', 'exec <>"$0"; exec "$@"'] as const

/**
 * A shell command that works around a bug of crun from 1.8 on. If the process ends before crun waits for events, crun
 * writes the process's output to the terminal as messages of crun's own log, with colours and a time. That happened for
 * one `echo` of ten (measured 2026-11). The bug does not occur while crun has another child. The shell therefore starts
 * a companion, which becomes a child of crun and ends when its input ends.
 */
const WITH_COMPANION = ['/bin/sh', '-c', 'read -r _ <&3 & exec 3<&-; exec "$@"', 'sh'] as const
/** How often to check whether crun waits for events. Once it does, the companion is ended. */
const COMPANION_CHECK_MS = 2
/** How long after the process's start the companion is ended even if crun does not wait yet. */
const COMPANION_LIMIT_MS = 200

/** Starts a command on a terminal. Rejects with `ExecFailure` of kind `pty_setup_failed`. */
export async function startExecOnTerminal(
  deps: ExecTerminalDeps,
  command: readonly string[],
  size: TerminalSize,
): Promise<ExecCli> {
  try {
    return deps.usesOuterTerminal
      ? await startOutside(deps, { command, size, more: [] })
      : await startWithCompanion(deps, command, size)
  } catch (error) {
    deps.log.error({ error }, 'setting up a terminal failed')
    throw new ExecFailure('pty_setup_failed', 'a terminal could not be set up', { stage: 'openpty' })
  }
}

async function startWithCompanion(
  deps: ExecTerminalDeps,
  command: readonly string[],
  size: TerminalSize,
): Promise<ExecCli> {
  const companion = await deps.fifoPool.takePipe('to-child')
  const endCompanion = (): void => {
    companion.socket.destroy()
  }
  try {
    const start = { command: [...WITH_COMPANION, ...command], size, more: [companion.path] }
    const execCli = await startOutside(deps, start)
    void execCli.ended.then(endCompanion)
    const onProcessStarted = (): void => {
      let checks = 0
      const timer = setInterval(() => {
        if (!waitsForEvents(execCli.pid) && ++checks < COMPANION_LIMIT_MS / COMPANION_CHECK_MS) return
        clearInterval(timer)
        endCompanion()
      }, COMPANION_CHECK_MS)
    }
    return { ...execCli, onProcessStarted }
  } catch (error) {
    endCompanion()
    throw error
  } finally {
    companion.closeChildEnd()
  }
}

/** Whether a process has ended or sleeps in epoll_wait(2), according to proc_pid_wchan(5). */
function waitsForEvents(pid: number): boolean {
  try {
    return /ep_poll|epoll_wait/.test(readFileSync(`/proc/${String(pid)}/wchan`, 'latin1'))
  } catch {
    return true
  }
}

type Start = {
  readonly command: readonly string[]
  readonly size: TerminalSize
  /** The files that the command gets as descriptors from 3 on. */
  readonly more: readonly string[]
}

async function startOutside(deps: ExecTerminalDeps, start: Start): Promise<ExecCli> {
  return deps.pty === null ? await startByScript(deps, start) : await startNatively(deps, deps.pty, start)
}

async function startNatively(
  { log, launcher, commandCgroups, usesOuterTerminal }: ExecTerminalDeps,
  pty: PtyBinding,
  { command, size, more }: Start,
): Promise<ExecCli> {
  const pair = pty.open(size.cols, size.rows)
  const master = new ReadStream(pair.master)
  try {
    const onTerminal = usesOuterTerminal ? [...ON_OWN_TERMINAL, pair.pty, ...command] : command
    const launched = await launcher.start(onTerminal, [pair.pty, pair.pty, pair.pty, ...more], {
      cgroups: commandCgroups,
    })
    return {
      ...launched,
      stdin: writableOver(master),
      stdout: readableOver(master),
      stderr: null,
      onProcessStarted: () => {
        // nothing to do
      },
      resize(pid, { rows, cols }) {
        try {
          const inner = openSync(innerTerminal(pid), constants.O_RDWR | constants.O_NOCTTY | constants.O_NONBLOCK)
          try {
            pty.resize(inner, cols, rows)
          } finally {
            closeSync(inner)
          }
        } catch (error) {
          log.debug({ error, terminal_pid: pid }, 'resizing a terminal failed') // the process has ended or left its terminal
        }
      },
    }
  } catch (error) {
    master.destroy()
    throw error
  } finally {
    closeSync(pair.slave) // this descriptor kept the terminal open until the command had opened it in blocking mode
  }
}

/**
 * Starts a command on a terminal without native code. script(1) of util-linux creates the outer terminal, and stty(1)
 * of coreutils sets sizes, one process at a time, however often the client changes the size. The pipes come from the
 * FIFO pool, because Node drops unread output of its own pipes when their process ends.
 */
async function startByScript(deps: ExecTerminalDeps, { command, size, more }: Start): Promise<ExecCli> {
  const quoted = command.map((word) => `'${word.replaceAll("'", `'\\''`)}'`).join(' ')
  const onTerminal = `stty rows ${String(size.rows)} cols ${String(size.cols)}; exec ${quoted}`
  const { stderr, ...execCli } = await startExecOnPipes(deps, ['script', '-qefc', onTerminal, '/dev/null'], { more })
  stderr?.resume() // messages of script(1) itself
  const setSize = applyLatest(async ({ pid, rows, cols }: TerminalSize & { readonly pid: number }) => {
    const args = ['-F', innerTerminal(pid), 'rows', String(rows), 'cols', String(cols)]
    try {
      await tryCommand('stty', args, { timeoutMs: STTY_TIMEOUT_MS })
    } catch (error) {
      deps.log.debug({ error, terminal_pid: pid }, 'resizing a terminal failed')
    }
  })
  return {
    ...execCli,
    stderr: null,
    resize(pid, size) {
      setSize({ pid, ...size })
    },
  }
}

function innerTerminal(pid: number): string {
  return `/proc/${String(pid)}/fd/0`
}

/**
 * Returns the output of a terminal as a separate stream, which buffers it. When a terminal ends, reading fails with
 * EIO, and `ReadStream` drops the output that it has buffered. It therefore buffers at most one chunk itself.
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
    // EIO: the other side was closed
  })
  master.on('close', () => {
    output.push(null)
  })
  return output
}

/** Returns the input of a terminal as a stream. Data that is written after the terminal's end is dropped. */
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

import { closeSync, constants, openSync, readFileSync } from 'node:fs'
import { Readable, Writable } from 'node:stream'
import { ReadStream } from 'node:tty'
import type { Log } from '../../../../lib/log.ts'
import { tryCommand } from '../../../../lib/run-command.ts'
import { ExecFailure } from '../../../channel/guest.ts'
import { startExecOnPipes } from './exec-cli.ts'
import type { ExecCli, ExecCliDeps, TerminalSize } from './exec-cli.ts'
import type { PtyBinding } from './pty-binding.ts'

/**
 * A process in a container with a terminal. The runtime makes the container's own terminal and carries its bytes to one
 * out here (runtime-notes 4.6). crun 1.8 doesn't pass a new size on, so it is set on the inner one, through the
 * process's own descriptors. crun (1.8 and those after it) sets the first size beside the start of the program: on a
 * busy machine a program that asks at once may be told 0 rows, and then gets SIGWINCH as with any new size.
 */

export type TerminalDeps = ExecCliDeps & {
  readonly log: Log
  readonly pty: PtyBinding | null
  /** Whether the command line makes no terminal within, and so needs the one out here as its own. */
  readonly usesOuterTerminal: boolean
}

/** What is read from a terminal before the client has taken it. */
const READ_BUFFER_BYTES = 256 * 1024
const STTY_TIMEOUT_MS = 5_000

/**
 * A session leader that opens a terminal has it as its own: Ctrl-C and a new size then reach the command line as
 * signals, which gVisor's passes on, having no other terminal within.
 */
const ON_OWN_TERMINAL = ['/bin/sh', '-c', 'exec <>"$0"; exec "$@"'] as const

/**
 * A process that ends before crun has begun to wait: its output is not carried, but put into crun's log, between colours
 * and a time on the same terminal (1.8 and those after it; one `echo` of ten, measured 2026-11). With another child crun
 * waits as usual, so a shell gives it one, which ends with its input.
 */
const WITH_COMPANION = ['/bin/sh', '-c', 'read -r _ <&3 & exec 3<&-; exec "$@"', 'sh'] as const
/** How often it is looked whether crun waits, and how long at most after the process's start. */
const LOOK_MS = 2
const COMPANION_LIMIT_MS = 200

/** Starts a command line on a terminal. Rejects with `ExecFailure` of kind `pty_setup_failed`. */
export async function startExecOnTerminal(
  deps: TerminalDeps,
  command: readonly string[],
  size: TerminalSize,
): Promise<ExecCli> {
  try {
    return deps.usesOuterTerminal
      ? await startOutside(deps, { command, size, more: [] })
      : await startWithCompanion(deps, command, size)
  } catch (error) {
    deps.log.error({ err: error }, 'a terminal could not be set up')
    throw new ExecFailure('pty_setup_failed', 'a terminal could not be set up', { stage: 'openpty' })
  }
}

async function startWithCompanion(
  deps: TerminalDeps,
  command: readonly string[],
  size: TerminalSize,
): Promise<ExecCli> {
  const companion = await deps.fifoPool.takePipe('to-child')
  const letGo = (): void => {
    companion.socket.destroy()
  }
  try {
    const start = { command: [...WITH_COMPANION, ...command], size, more: [companion.path] }
    const carrier = await startOutside(deps, start)
    void carrier.ended.then(letGo)
    const onProcessStarted = (): void => {
      let looks = 0
      const timer = setInterval(() => {
        if (!waitsForEvents(carrier.pid) && ++looks < COMPANION_LIMIT_MS / LOOK_MS) return
        clearInterval(timer)
        letGo()
      }, LOOK_MS)
    }
    return { ...carrier, onProcessStarted }
  } catch (error) {
    letGo()
    throw error
  } finally {
    companion.closeChildEnd()
  }
}

/** Whether a process is in epoll_wait(2), by the name that the kernel gives its sleep (proc_pid_wchan(5)); one that is gone is, too. */
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
  /** What the command line has as its descriptors from 3 on. */
  readonly more: readonly string[]
}

async function startOutside(deps: TerminalDeps, start: Start): Promise<ExecCli> {
  return deps.pty === null ? await startByScript(deps, start) : await startNatively(deps, deps.pty, start)
}

async function startNatively(
  { log, launcher, usesOuterTerminal }: TerminalDeps,
  pty: PtyBinding,
  { command, size, more }: Start,
): Promise<ExecCli> {
  const pair = pty.open(size.cols, size.rows)
  const master = new ReadStream(pair.master)
  try {
    const onTerminal = usesOuterTerminal ? [...ON_OWN_TERMINAL, pair.pty, ...command] : command
    const launched = await launcher.start(onTerminal, [pair.pty, pair.pty, pair.pty, ...more])
    return {
      ...launched,
      stdin: writableOver(master),
      stdout: readableOver(master),
      stderr: null,
      onProcessStarted: () => {
        // nothing waits for it
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
          log.debug({ err: error, pid }, 'a terminal could not be resized') // the process has ended or left its terminal
        }
      },
    }
  } catch (error) {
    master.destroy()
    throw error
  } finally {
    closeSync(pair.slave) // it kept the terminal from its end; the command line has opened one that blocks
  }
}

/**
 * Without native code: script(1) of util-linux makes the outer terminal, stty(1) of coreutils sets sizes. Its pipes are
 * from the pool: Node throws away what nobody reads yet of its own once their process has ended.
 */
async function startByScript(deps: TerminalDeps, { command, size, more }: Start): Promise<ExecCli> {
  const quoted = command.map((word) => `'${word.replaceAll("'", `'\\''`)}'`).join(' ')
  const onTerminal = `stty rows ${String(size.rows)} cols ${String(size.cols)}; exec ${quoted}`
  const { stderr, ...carrier } = await startExecOnPipes(deps, ['script', '-qefc', onTerminal, '/dev/null'], more)
  stderr?.resume() // script's own words
  return {
    ...carrier,
    stderr: null,
    resize(pid, { rows, cols }) {
      const args = ['-F', innerTerminal(pid), 'rows', String(rows), 'cols', String(cols)]
      tryCommand('stty', args, { timeoutMs: STTY_TIMEOUT_MS }).catch((error: unknown) => {
        deps.log.debug({ err: error, pid }, 'a terminal could not be resized')
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

import type { Readable } from 'node:stream'
import type { Channel, MessageHandlers } from './channel.ts'
import { errnoFields, failedPayload, readExecRequest, readResize, readSignal } from './exec-payloads.ts'
import { ExecFailure, type GuestExec, type GuestProcess } from './guest.ts'
import type { OutputSource } from '../logs/output-stream.ts'
import { makeInbox, sendStream } from './flow-control.ts'
import { CborError } from '../../channel/cbor.ts'
import { decodeData } from '../../channel/envelope.ts'
import { makeSessionTable } from './session-table.ts'

type ExecMessages = 'core.exec.request' | 'core.exec.stdin' | 'core.exec.resize' | 'core.exec.signal'

/**
 * Handles one client's exec messages. Input, sizes and signals for an unknown or finished id are ignored, because the
 * client may send them before it learns that the session has ended.
 */
export function makeExecHandlers(channel: Channel, onProcess: () => () => void): MessageHandlers<ExecMessages> {
  const sessions = makeSessionTable<ExecSession>(channel)

  const fail = (id: number, error: unknown): void => {
    channel.send(id, 'core.exec.failed', failedPayload(error))
  }
  /** Decodes a request. If it can't be served, sends the reason to the client and returns null. */
  const read = (id: number, payload: Uint8Array): GuestExec | null => {
    try {
      return readExecRequest(payload)
    } catch (error) {
      if (!(error instanceof CborError) && !(error instanceof ExecFailure)) throw error
      fail(id, error)
      return null
    }
  }

  return {
    handlers: {
      'core.exec.request': ({ id, payload }) => {
        const start = (): ExecSession | null => {
          const request = read(id, payload)
          if (request === null) return null
          const endUse = onProcess()
          const session = startExecSession(channel, id, request)
          return { ...session, ended: session.ended.finally(endUse) }
        }
        const refuse = (): void => {
          fail(id, new ExecFailure('other', 'too many open sessions', { errno: 11, errnoName: 'EAGAIN' }))
        }
        sessions.open({ id, type: 'core.exec.request' }, { start, refuse })
      },
      'core.exec.stdin': ({ id, payload }) => {
        sessions.get(id)?.write(decodeData(payload))
      },
      'core.exec.resize': ({ id, payload }) => {
        const { rows, cols } = readResize(payload)
        sessions.get(id)?.resize(rows, cols)
      },
      'core.exec.signal': ({ id, payload }) => {
        sessions.get(id)?.signal(readSignal(payload))
      },
    },
    close() {
      for (const session of sessions.all()) session.kill()
    },
  }
}

/** One process of a client, from the request to the terminal message. */
type ExecSession = {
  /** Passes input to the process. Empty data means the end of input. Data after the end of input is ignored. */
  write(data: Buffer): void
  resize(rows: number, cols: number): void
  /** Ignores a number that is not one of a Linux signal. */
  signal(signal: number): void
  /** Kills the process group and closes its streams. Called when the client has disconnected. */
  kill(): void
  /** Resolves after the terminal message is queued, or, after `kill`, once the process is reaped. Never rejects. */
  readonly ended: Promise<void>
}

const SIGKILL = 9
const MAX_SIGNAL = 64
/** The exit code of a shell whose command was ended by SIGKILL. */
const KILLED = 128 + SIGKILL

/**
 * Starts a process and forwards its streams. Keeps messages that arrive before the process runs, up to a limit. Reports
 * the exit after both outputs have ended and the process is reaped, so that no message follows the exit.
 */
function startExecSession(channel: Channel, id: number, request: GuestExec): ExecSession {
  let child: GuestProcess | null = null
  let isKilled = false
  let hasEnded = false
  const inbox = makeInbox<GuestProcess>(channel)

  const write = (to: GuestProcess, data: Buffer): void => {
    const { stdin } = to
    if (stdin.destroyed || stdin.writableEnded) return
    if (data.length > 0) inbox.write(stdin, data)
    else if (request.tty === null) {
      stdin.end() // a terminal has no end of input
    }
  }

  const adopt = (started: GuestProcess): void => {
    child = started
    let hasToldError = false
    started.stdin.on('error', (error) => {
      if (hasToldError || hasEnded || isKilled) return
      hasToldError = true
      channel.send(id, 'core.exec.stdin.error', { ...errnoFields(error), message: error.message })
    })
    channel.send(id, 'core.exec.started', { pid: started.pid })
    inbox.open(started)
  }

  const discard = (process: GuestProcess): void => {
    process.signal(SIGKILL)
    process.stdin.destroy()
    process.stdout.destroy()
    process.stderr?.destroy()
  }

  const carry = async (type: OutputType, stream: Readable): Promise<void> => {
    const captured = channel.capture.stream(sourceOf(type, request))
    await sendStream(channel, stream, (data) => {
      channel.sendData(id, type, data)
      captured.write(data)
    })
    captured.end()
  }

  /**
   * Tells a client why its command was killed. The protocol's exit has only a code, which is the same for any SIGKILL, so the
   * reason is a last line of the error output, as a shell writes `Killed`.
   */
  const tellMemoryKill = (process: GuestProcess, code: number): void => {
    const kill = code === -1 || code === KILLED ? (process.describeMemoryKill?.() ?? null) : null
    if (kill === null) return
    const [type, end] =
      process.stderr === null ? (['core.exec.stdout', '\r\n'] as const) : (['core.exec.stderr', '\n'] as const)
    channel.sendData(id, type, Buffer.from(`sandyard: ${kill}${end}`))
  }

  const run = async (): Promise<void> => {
    try {
      const started = await channel.guest.exec(request)
      if (isKilled) {
        discard(started)
        await started.exited
        return
      }
      adopt(started)
      const outputs = [carry('core.exec.stdout', started.stdout)]
      if (started.stderr !== null) outputs.push(carry('core.exec.stderr', started.stderr))
      await Promise.all(outputs)
      const code = await started.exited
      hasEnded = true
      inbox.close()
      started.stdin.destroy()
      tellMemoryKill(started, code)
      channel.send(id, 'core.exec.exited', { code })
    } catch (error) {
      if (!(error instanceof ExecFailure)) channel.log.error({ error }, 'a process could not be started')
      channel.send(id, 'core.exec.failed', failedPayload(error))
    } finally {
      hasEnded = true
      inbox.close()
    }
  }

  return {
    ended: run(),
    write(data) {
      inbox.deliver(data.length, (to) => {
        write(to, data)
      })
    },
    resize(rows, cols) {
      inbox.deliver(0, (to) => {
        to.resize(rows, cols)
      })
    },
    signal(signal) {
      if (signal < 1 || signal > MAX_SIGNAL) return
      inbox.deliver(0, (to) => {
        to.signal(signal)
      })
    },
    kill() {
      isKilled = true
      inbox.close()
      if (child !== null && !hasEnded) discard(child)
    },
  }
}

type OutputType = 'core.exec.stdout' | 'core.exec.stderr'

/** The log source of an output. With a tty there is only one output, which mixes stdout and stderr. */
function sourceOf(type: OutputType, { tty }: GuestExec): OutputSource {
  if (tty !== null) return 'output'
  return type === 'core.exec.stdout' ? 'stdout' : 'stderr'
}

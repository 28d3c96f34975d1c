import { Readable, Writable } from 'node:stream'
import { decodeData } from '../channel/envelope.ts'
import { type AgentMessage, type Connection, fieldsOf, refusalOf } from './connection.ts'
import { applyLatest } from '../lib/turns/apply-latest.ts'
import { makeSignalQueue } from '../lib/turns/signal-queue.ts'
import type { ChannelEnd } from '../contract/sandboxes/channel-ends.ts'
import { makeIntake } from './intake.ts'

export type ExecRequest = {
  readonly cmd: string
  readonly args: readonly string[]
  /** `KEY=VALUE` items, in addition to the environment of the sandbox. */
  readonly env: readonly string[]
  /** The folder, or null for that of the sandbox. */
  readonly cwd: string | null
  /** `name`, `uid`, `name:group` or `uid:gid`, or null for the user of the sandbox. */
  readonly user: string | null
  readonly tty: { readonly rows: number; readonly cols: number; readonly term: string } | null
}

/**
 * How a process ended. `signaled`: a signal ended it; the protocol doesn't say which, so `signal` is the last one that
 * this session sent, or null. `failed`: it was not started; `reason` is a word of the agent protocol, such as
 * `not_found`. `lost`: the channel ended before the process.
 */
export type ExecExit =
  | { readonly kind: 'exited'; readonly code: number }
  | { readonly kind: 'signaled'; readonly signal: number | null }
  | { readonly kind: 'failed'; readonly reason: string; readonly message: string }
  | { readonly kind: 'lost'; readonly why: ChannelEnd }

/** A process in a sandbox. The process ends with its channel. */
export type ExecSession = {
  /** Input. Its end is the end of input, except on a terminal. Input that the process doesn't take is dropped. */
  readonly stdin: Writable
  /** With a tty, `stdout` is the only output. Read both: unread output delays the whole channel. */
  readonly stdout: Readable
  readonly stderr: Readable
  /** Sets the size of the terminal. While the channel takes nothing, only the latest size waits. */
  resize(rows: number, cols: number): void
  /** Sends a Linux signal to the process group. While the channel takes nothing, one of each number waits. */
  signal(signal: number): void
  /** Never rejects. The output may still be unread. */
  readonly exit: Promise<ExecExit>
}

/** Starts a process. Never throws; `exit` tells of a failure. */
export function startExec(connection: Connection, request: ExecRequest): ExecSession {
  const { promise: exit, resolve } = Promise.withResolvers<ExecExit>()
  const stdout = makeOutput(connection)
  const stderr = makeOutput(connection)
  let lastSignal: number | null = null
  const finish = (result: ExecExit): void => {
    stdout.end()
    stderr.end()
    stdin.destroy()
    resolve(result)
  }
  const onMessage = (message: AgentMessage): void => {
    if (message.type === 'core.exec.stdout') stdout.push(decodeData(message.payload))
    else if (message.type === 'core.exec.stderr') stderr.push(decodeData(message.payload))
    else if (message.type === 'core.exec.exited') finish(exitOf(fieldsOf(message)['code'], lastSignal))
    else if (message.isLast) {
      const refusal = refusalOf(message)
      const { kind, message: text } = fieldsOf(message)
      finish({ kind: 'failed', reason: refusal === null ? String(kind) : 'other', message: refusal ?? String(text) })
    }
  }
  const { tty, ...rest } = request
  const session = connection.start(
    {
      type: 'core.exec.request',
      payload: {
        ...rest,
        env: tty === null ? rest.env : [...rest.env, `TERM=${tty.term}`],
        tty: tty !== null,
        rows: tty?.rows ?? 24,
        cols: tty?.cols ?? 80,
        rlimits: [],
      },
    },
    {
      onMessage,
      onLost({ why }) {
        finish({ kind: 'lost', why })
      },
    },
  )
  const stdin = new Writable({
    write(data: Buffer, _encoding, done) {
      session.sendData('core.exec.stdin', data, () => {
        done()
      })
    },
    final(done) {
      if (tty === null) session.send('core.exec.stdin', { data: Buffer.alloc(0) })
      done()
    },
  })
  const resize = applyLatest((size: { readonly rows: number; readonly cols: number }) => session.sendInTurn('core.exec.resize', size)) // prettier-ignore
  const signal = makeSignalQueue((number) => session.sendInTurn('core.exec.signal', { signal: number }))
  stdin.on('error', () => {
    // a write after the exit; `exit` reports the end
  })
  return {
    stdin,
    stdout: stdout.stream,
    stderr: stderr.stream,
    exit,
    resize(rows, cols) {
      resize({ rows, cols })
    },
    signal(number) {
      lastSignal = number
      signal(number)
    },
  }
}

/** The agent protocol reports -1 for a process that a signal ended. */
function exitOf(code: unknown, lastSignal: number | null): ExecExit {
  if (typeof code !== 'number') return { kind: 'failed', reason: 'other', message: 'the agent sent no exit code' }
  return code < 0 ? { kind: 'signaled', signal: lastSignal } : { kind: 'exited', code }
}

type Output = { readonly stream: Readable; push(data: Buffer): void; end(): void }

function makeOutput(connection: Connection): Output {
  const intake = makeIntake(connection)
  const stream = new Readable({
    read() {
      intake.resume()
    },
    destroy(error, done) {
      intake.resume()
      done(error)
    },
  })
  return {
    stream,
    push(data) {
      intake.push(stream, data)
    },
    end() {
      if (!stream.destroyed) stream.push(null)
    },
  }
}

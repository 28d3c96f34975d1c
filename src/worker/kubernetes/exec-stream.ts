import { Duplex } from 'node:stream'
import type { WebSocket } from 'ws'
import { pingEvery } from '../../lib/streams/web-socket-flow.ts'
import type { Pace } from '../../lib/turns/piece-pacer.ts'
import type { ApiClient } from './api-client.ts'
import { makeApiError } from './api-error.ts'

/** How a command in a Pod ended: its exit code, or why there is none. */
export type ExecStatus =
  { readonly kind: 'exited'; readonly code: number } | { readonly kind: 'failed'; readonly message: string }

/** A command in a Pod. `stream` writes to its standard input and reads its standard output, at the pace of both sides. */
export type PodExec = {
  readonly stream: Duplex
  /** Resolves when the stream has closed. A lost connection is `failed`, and says nothing about the command. */
  readonly ended: Promise<ExecStatus>
}

export type ExecTarget = {
  readonly namespace: string
  readonly pod: string
  readonly container: string
  readonly command: readonly string[]
  /** How many messages of the command are taken in a turn of the event loop. Absent: all that arrive. */
  readonly pace?: Pace
}

const PROTOCOL = 'v5.channel.k8s.io'
const [STDIN, STDOUT, STDERR, STATUS, CLOSE] = [0, 1, 2, 3, 255]
/** How much of the command's error output is kept for the message of a failure. */
const STDERR_LIMIT = 2_000
/** A connection without data is checked as often as this, in milliseconds, so that a dead one is noticed. */
const PING_MS = 15_000

/**
 * Starts a command in a container of a Pod (`v5.channel.k8s.io`). Closing the stream doesn't end the command, only its input.
 * Rejects with `ApiError`, or with the error of the connection.
 */
export async function execInPod(
  client: Pick<ApiClient, 'openSocket'>,
  { namespace, pod, container, command, ...paced }: ExecTarget,
  signal: AbortSignal,
): Promise<PodExec> {
  const query = new URLSearchParams({ container, stdin: 'true', stdout: 'true', stderr: 'true', tty: 'false' })
  for (const word of command) query.append('command', word)
  const path = `/api/v1/namespaces/${namespace}/pods/${pod}/exec?${query.toString()}`
  return overSocket(await client.openSocket(path, PROTOCOL, { ...paced, signal }), `exec in ${pod}`)
}

function overSocket(socket: WebSocket, what: string): PodExec {
  const ended = Promise.withResolvers<ExecStatus>()
  let errors = ''
  const stream = new Duplex({
    allowHalfOpen: true,
    read: () => {
      socket.resume()
    },
    write: (data: Buffer, _encoding, written) => {
      // The callback comes once the bytes left this process, so a command that reads slowly stops the writer.
      socket.send(Buffer.concat([Buffer.of(STDIN), data]), written)
    },
    final: (finished) => {
      socket.send(Buffer.of(CLOSE, STDIN), finished)
    },
    destroy: (error, destroyed) => {
      socket.terminate()
      ended.resolve({ kind: 'failed', message: `${what}: the stream was closed` })
      destroyed(error)
    },
  })
  let hasStatus = false
  pingEvery(socket, PING_MS, () => stream.destroy(new Error(`${what}: the connection is dead`)))
  socket.on('message', (message: Buffer) => {
    const [kind] = message
    const data = message.subarray(1)
    if (kind === STDOUT && data.length > 0 && !stream.push(data)) socket.pause()
    else if (kind === STDERR) errors = `${errors}${data.toString('utf8')}`.slice(-STDERR_LIMIT)
    else if (kind === STATUS && !hasStatus) {
      hasStatus = true
      ended.resolve(readStatus(data.toString('utf8'), errors))
      stream.push(null)
      socket.resume() // the end of the connection must be read
    }
  })
  socket.on('error', (error) => {
    stream.destroy(error)
  })
  socket.on('close', () => {
    const close = (): void => {
      stream.destroy(hasStatus ? undefined : new Error(`${what}: the connection was closed. ${errors}`.trim()))
    }
    // What arrived before the status is still to be read.
    if (hasStatus && !stream.readableEnded) stream.once('end', close)
    else close()
  })
  socket.resume()
  return { stream, ended: ended.promise }
}

type Status = {
  readonly status?: string
  readonly message?: string
  readonly details?: { readonly causes?: readonly { readonly reason?: string; readonly message?: string }[] }
}

/** Reads the Status that ends a command. A program that is not there has no exit code, only the runtime's message. */
function readStatus(text: string, errors: string): ExecStatus {
  try {
    const { status, message = '', details } = JSON.parse(text) as Status // the API server's format
    if (status === 'Success') return { kind: 'exited', code: 0 }
    const code = details?.causes?.find(({ reason }) => reason === 'ExitCode')?.message
    return code === undefined
      ? { kind: 'failed', message: `${message} ${errors}`.trim() }
      : { kind: 'exited', code: Number(code) }
  } catch {
    return { kind: 'failed', message: makeApiError('exec', 0, text).message }
  }
}

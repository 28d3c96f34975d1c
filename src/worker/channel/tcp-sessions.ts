import type { Duplex } from 'node:stream'
import { getSystemErrorMessage } from 'node:util'
import type { Channel, MessageHandlers } from './channel.ts'
import { TcpFailure, type TcpTarget } from './guest.ts'
import { makeInbox, sendStream } from './flow-control.ts'
import { CborError, asInteger, asMap, asText, decodeCbor } from '../../channel/cbor.ts'
import { decodeData } from '../../channel/envelope.ts'
import { makeSessionTable } from './session-table.ts'

type TcpMessages = 'core.tcp.connect' | 'core.tcp.data' | 'core.tcp.eof' | 'core.tcp.close'

/**
 * Handles one client's connections into its sandbox. Data for an unknown id is answered with a failure, as in
 * microsandbox's agent. An end or a close for an unknown id is ignored, because the client may send it before it learns
 * that the connection has ended.
 */
export function makeTcpHandlers(channel: Channel): MessageHandlers<TcpMessages> {
  const sessions = makeSessionTable<TcpSession>(channel)

  const fail = (id: number, error: string): void => {
    channel.send(id, 'core.tcp.failed', { error })
  }
  /** Decodes the host and port. If the request can't be served, sends the reason to the client and returns null. */
  const read = (id: number, payload: Uint8Array): TcpTarget | null => {
    try {
      return readTcpTarget(payload)
    } catch (error) {
      if (!(error instanceof CborError)) throw error
      fail(id, `connect: the request can't be read: ${error.message}`)
      return null
    }
  }

  return {
    handlers: {
      'core.tcp.connect': ({ id, payload }) => {
        const start = (): TcpSession | null => {
          const target = read(id, payload)
          return target === null ? null : startTcpSession(channel, id, target)
        }
        const refuse = (): void => {
          fail(id, 'connect: too many open sessions: Resource temporarily unavailable (os error 11)')
        }
        sessions.open({ id, type: 'core.tcp.connect' }, { start, refuse })
      },
      'core.tcp.data': ({ id, payload }) => {
        const data = decodeData(payload)
        const session = sessions.get(id)
        if (session === undefined) fail(id, `unknown TCP session: ${String(id)}`)
        else session.write(data)
      },
      'core.tcp.eof': ({ id, payload }) => {
        asMap(decodeCbor(payload))
        sessions.get(id)?.end()
      },
      'core.tcp.close': ({ id, payload }) => {
        asMap(decodeCbor(payload))
        sessions.get(id)?.abort()
      },
    },
    close() {
      for (const session of sessions.all()) session.abort()
    },
  }
}

/** One connection of a client into the sandbox, from the request to the terminal message. */
type TcpSession = {
  /** Sends data to the peer, to which the sandbox is connected. Data after `end` is ignored. */
  write(data: Buffer): void
  /** Ends the direction from the client to the peer after all data is sent. The peer may still answer. */
  end(): void
  /** Closes the connection at once, because the client closed it or has disconnected. No further message is sent. */
  abort(): void
  /** Resolves after the terminal message is queued, or, after `abort`, once the connection is closed. Never rejects. */
  readonly ended: Promise<void>
}

/** The time limit for connecting, including name resolution. Microsandbox's agent has the same limit. */
const CONNECT_LIMIT_MS = 30_000

/**
 * Opens a connection and forwards both directions, which end independently. Keeps data that arrives before the
 * connection is open, up to a limit. Sends the terminal message when both directions have ended or the connection has
 * broken.
 */
function startTcpSession(channel: Channel, id: number, target: TcpTarget): TcpSession {
  const abort = new AbortController()
  const inbox = makeInbox<Duplex>(channel)

  const run = async (): Promise<void> => {
    try {
      const stream = await connect(channel, target, abort.signal)
      if (abort.signal.aborted) {
        await cut(stream)
        return
      }
      const ended = closeOutcome(stream)
      abort.signal.addEventListener('abort', () => stream.destroy(), { once: true })
      channel.send(id, 'core.tcp.connected', {})
      inbox.open(stream)
      await sendStream(channel, stream, (data) => {
        channel.sendData(id, 'core.tcp.data', data)
      })
      if (stream.readableEnded && !abort.signal.aborted) channel.send(id, 'core.tcp.eof', {})
      const failure = await ended
      if (abort.signal.aborted) return
      if (failure !== null) throw failure
      channel.send(id, 'core.tcp.closed', {})
    } catch (error) {
      if (abort.signal.aborted) return
      if (!(error instanceof TcpFailure) && !isSystemError(error))
        channel.log.error({ error }, 'a connection into a sandbox failed')
      channel.send(id, 'core.tcp.failed', { error: describeFailure(error, target) })
    } finally {
      inbox.close()
    }
  }

  return {
    ended: run(),
    write(data) {
      inbox.deliver(data.length, (stream) => {
        if (!stream.destroyed && !stream.writableEnded) inbox.write(stream, data)
      })
    },
    end() {
      inbox.deliver(0, (stream) => {
        if (!stream.destroyed && !stream.writableEnded) stream.end()
      })
    },
    abort() {
      inbox.close()
      abort.abort(new TcpFailure('the client closed the connection'))
    },
  }
}

async function connect(channel: Channel, target: TcpTarget, signal: AbortSignal): Promise<Duplex> {
  const limit = new AbortController()
  const settled = new AbortController()
  const timer = channel.clock.sleep(CONNECT_LIMIT_MS, settled.signal).then(
    () => {
      limit.abort(new TcpFailure(`connect ${target.host}:${String(target.port)} timed out`))
    },
    (error: unknown) => {
      if (!settled.signal.aborted) throw error
    },
  )
  try {
    return await channel.guest.connect(target, AbortSignal.any([signal, limit.signal]))
  } finally {
    settled.abort()
    await timer
  }
}

/** Resolves once a stream is closed: with null, or with the error that closed it. */
function closeOutcome(stream: Duplex): Promise<Error | null> {
  return new Promise((resolve) => {
    let failure: Error | null = null
    stream.on('error', (error) => {
      failure = error
    })
    stream.once('close', () => {
      resolve(failure)
    })
  })
}

async function cut(stream: Duplex): Promise<void> {
  const ended = closeOutcome(stream)
  stream.destroy()
  await ended
}

/** Describes a failure as microsandbox's agent does, with the system's error number in the text. */
function describeFailure(error: unknown, { host, port }: TcpTarget): string {
  if (error instanceof TcpFailure) return error.message
  if (!isSystemError(error)) return `connect ${host}:${String(port)}: the connection failed`
  const { syscall, errno } = error
  return `${syscall} TCP stream: ${getSystemErrorMessage(errno)} (os error ${String(-errno)})`
}

/** Whether the system broke a connection: `errno` is the negative number of the error. */
function isSystemError(error: unknown): error is Error & { readonly syscall: string; readonly errno: number } {
  return error instanceof Error && 'syscall' in error && 'errno' in error && Number(error.errno) < 0
}

/** The maximum length of a host name. DNS names have at most 253 characters (RFC 1035). */
const MAX_HOST_CHARACTERS = 255
const U16 = { min: 0, max: 0xffff }

/** Decodes `core.tcp.connect`. Throws `CborError` for an invalid host or port. */
function readTcpTarget(payload: Uint8Array): TcpTarget {
  const map = asMap(decodeCbor(payload))
  const host = asText(map['host'])
  if (host === '' || host.length > MAX_HOST_CHARACTERS || host.includes('\0'))
    throw new CborError('the host is empty, too long or contains a NUL')
  return { host, port: asInteger(map['port'], U16) }
}

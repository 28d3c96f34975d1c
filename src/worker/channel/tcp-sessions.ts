import type { Duplex } from 'node:stream'
import type { Channel, MessageHandlers } from './channel.ts'
import { TcpFailure, type TcpTarget } from './guest.ts'
import { makeInbox, sendStream } from './flow-control.ts'
import { CborError, asInteger, asMap, asText, decodeCbor } from './cbor.ts'
import { decodeData } from './envelope.ts'
import { makeSessionTable } from './session-table.ts'

type TcpMessages = 'core.tcp.connect' | 'core.tcp.data' | 'core.tcp.eof' | 'core.tcp.close'

/**
 * The connections of one client into its sandbox (section 9). Data for an id without a connection is answered with a
 * failure, as by the genuine agent; an end or a close of one is ignored, since the client sends them while the terminal
 * message is still on its way.
 */
export function makeTcpHandlers(channel: Channel): MessageHandlers<TcpMessages> {
  const sessions = makeSessionTable<TcpSession>(channel)

  const fail = (id: number, error: string): void => {
    channel.send(id, 'core.tcp.failed', { error })
  }
  /** The host and port, or null once the client was told why nothing can be connected to. */
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
        const begin = (): TcpSession | null => {
          const target = read(id, payload)
          return target === null ? null : startTcpSession(channel, id, target)
        }
        const refuse = (): void => {
          fail(id, 'connect: too many open sessions: Resource temporarily unavailable (os error 11)')
        }
        sessions.open({ id, type: 'core.tcp.connect' }, { begin, refuse })
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

/** One connection of a client into the sandbox, from its request to its terminal message. */
type TcpSession = {
  /** Data for the other end. Nothing happens after `end`. */
  write(data: Buffer): void
  /** The client sends nothing more: told to the other end after all data. It may still answer. */
  end(): void
  /** The client wants no more of it or is gone: the connection is cut, and no message is owed. */
  abort(): void
  /** Resolves after the terminal message was queued, or after `cut` once nothing of the connection is left. */
  readonly over: Promise<void>
}

/** The longest that a connection may take to come about, name look-up included; that of the genuine agent (section 9). */
const CONNECT_LIMIT_MS = 30_000

/**
 * Connects and carries both directions, each of which ends by itself. Data that arrives before the connection is there
 * is kept, within a limit. The terminal message comes when both directions have ended, or when the connection broke.
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
      if (!(error instanceof TcpFailure)) channel.log.error({ err: error }, 'a connection into a sandbox failed')
      channel.send(id, 'core.tcp.failed', { error: describeFailure(error, target) })
    } finally {
      inbox.close()
    }
  }

  return {
    over: run(),
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
  const over = new AbortController()
  const timer = channel.clock.sleep(CONNECT_LIMIT_MS, over.signal).then(
    () => {
      limit.abort(new TcpFailure(`connect ${target.host}:${String(target.port)} timed out`))
    },
    (error: unknown) => {
      if (!over.signal.aborted) throw error
    },
  )
  try {
    return await channel.guest.connect(target, AbortSignal.any([signal, limit.signal]))
  } finally {
    over.abort()
    await timer
  }
}

/** Resolves once a stream has let go of everything: null, or with what it broke of. */
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

function describeFailure(error: unknown, { host, port }: TcpTarget): string {
  return error instanceof TcpFailure ? error.message : `connect ${host}:${String(port)}: the connection failed`
}

/** The longest host name that a connection is tried to; names of the DNS have 253 characters at most (RFC 1035). */
const MAX_HOST_CHARACTERS = 255
const U16 = { min: 0, max: 0xffff }

/** Reads `core.tcp.connect`. Throws `CborError` for what can't be the name or address of a host. */
function readTcpTarget(payload: Uint8Array): TcpTarget {
  const map = asMap(decodeCbor(payload))
  const host = asText(map['host'])
  if (host === '' || host.length > MAX_HOST_CHARACTERS || host.includes('\0'))
    throw new CborError('the host is empty, too long or holds a NUL')
  return { host, port: asInteger(map['port'], U16) }
}

import { CborError, decodeCbor } from './cbor.ts'
import type { Channel, MessageHandlers } from './channel.ts'
import { decodeData } from './envelope.ts'
import { asMap } from './fields.ts'
import type { TcpTarget } from './guest.ts'
import { makeSessionTable } from './sessions.ts'
import { readTcpTarget } from './tcp-payloads.ts'
import { startTcpSession } from './tcp-session.ts'
import type { TcpSession } from './tcp-session.ts'

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

import { CborError } from './cbor.ts'
import type { Channel, MessageHandlers } from './channel.ts'
import { decodeData } from './envelope.ts'
import { failedPayload, readExecRequest, readResize, readSignal } from './exec-payloads.ts'
import { startExecSession } from './exec-session.ts'
import type { ExecSession } from './exec-session.ts'
import { ExecFailure } from './guest.ts'
import type { GuestExec } from './guest.ts'
import { makeSessionTable } from './sessions.ts'

type ExecMessages = 'core.exec.request' | 'core.exec.stdin' | 'core.exec.resize' | 'core.exec.signal'

/**
 * The exec messages of one client. Input, sizes and signals for an unknown or finished id are ignored: the client sends
 * them while the end of its session is still on the way (section 7.2).
 */
export function makeExecHandlers(channel: Channel, onProcess: () => () => void): MessageHandlers<ExecMessages> {
  const sessions = makeSessionTable<ExecSession>(channel)

  const fail = (id: number, error: unknown): void => {
    channel.send(id, 'core.exec.failed', failedPayload(error))
  }
  /** The request, or null once the client was told why it can't be served. */
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
        const begin = (): ExecSession | null => {
          const request = read(id, payload)
          if (request === null) return null
          const endUse = onProcess()
          const session = startExecSession(channel, id, request)
          return { ...session, over: session.over.finally(endUse) }
        }
        const refuse = (): void => {
          fail(id, new ExecFailure('other', 'too many open sessions', { errno: 11, errnoName: 'EAGAIN' }))
        }
        sessions.open({ id, type: 'core.exec.request' }, { begin, refuse })
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

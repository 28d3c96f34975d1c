import type { Channel, IncomingMessage } from './channel.ts'
import type { ClientMessageType } from '../../channel/messages.ts'

/** The sessions of one kind, by their ids. */
type SessionTable<S> = {
  /**
   * Opens a session for a request. If no session can start, `start` sends the reason to the client and returns null. At
   * the session limit, `refuse` sends the refusal. The id is free again after the session has ended.
   */
  open(
    message: Pick<IncomingMessage, 'id'> & { readonly type: ClientMessageType },
    callbacks: { readonly start: () => S | null; readonly refuse: () => void },
  ): void
  get(id: number): S | undefined
  all(): Iterable<S>
}

/** Makes an empty table. */
export function makeSessionTable<S extends { readonly ended: Promise<void> }>(channel: Channel): SessionTable<S> {
  const sessions = new Map<number, S>()
  return {
    open({ id, type }, { start, refuse }) {
      const claim = channel.claimId(id)
      if (claim === 'live') {
        channel.sendError(id, 'invalid_session', { message: 'this id has a session', type })
        return
      }
      if (claim === 'full') {
        refuse()
        return
      }
      const session = start()
      if (session === null) {
        channel.releaseId(id)
        return
      }
      sessions.set(id, session)
      channel.supervise(
        session.ended.finally(() => {
          sessions.delete(id)
          channel.releaseId(id)
        }),
      )
    },
    get: (id) => sessions.get(id),
    all: () => sessions.values(),
  }
}

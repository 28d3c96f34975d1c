import type { Channel, Incoming } from './channel.ts'
import type { ClientMessageType } from './messages.ts'

/** The sessions of one family, by their ids. */
export type Sessions<S> = {
  /**
   * Opens a session for a message that asks for one. `begin` answers null when it told the client why there is none;
   * `refuseField` tells it that too many are open. The id is the client's again once the session is over.
   */
  open(
    message: Pick<Incoming, 'id'> & { readonly type: ClientMessageType },
    how: { readonly begin: () => S | null; readonly refuse: () => void },
  ): void
  get(id: number): S | undefined
  all(): Iterable<S>
}

/** No session is open yet. */
export function makeSessions<S extends { readonly over: Promise<void> }>(channel: Channel): Sessions<S> {
  const sessions = new Map<number, S>()
  return {
    open({ id, type }, { begin, refuse }) {
      const claim = channel.claim(id)
      if (claim === 'live') {
        channel.sendError(id, 'invalid_session', { message: 'this id has a session', type })
        return
      }
      if (claim === 'full') {
        refuse()
        return
      }
      const session = begin()
      if (session === null) {
        channel.release(id)
        return
      }
      sessions.set(id, session)
      channel.own(
        session.over.finally(() => {
          sessions.delete(id)
          channel.release(id)
        }),
      )
    },
    get: (id) => sessions.get(id),
    all: () => sessions.values(),
  }
}

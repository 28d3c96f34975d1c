import type { Socket } from 'node:net'
import type { ConnectNear } from '../../control/streams/near-workers.ts'
import { touchWhileUsed } from '../../worker/drivers/oci/run/touch-while-used.ts'
import type { ConnectionOrder, WorkerEvent } from './messages.ts'

/** Connections to sandboxes that the worker's process opens and hands over. */
export type NearConnections = {
  readonly connect: ConnectNear
  /** Takes an answer of the worker's process. */
  receive(event: Extract<WorkerEvent, { kind: 'connected' | 'unconnected' }>, socket: Socket | null): void
  /** Fails what waits for an answer, because the worker's process has ended. Open connections continue. */
  end(): void
}

type Opening = { readonly resolve: (socket: Socket | null) => void; readonly reject: (error: Error) => void }

/** Makes the connections of one process of the worker. */
export function makeNearConnections(tell: (order: ConnectionOrder) => void): NearConnections {
  const openings = new Map<number, Opening>()
  let lastId = 0
  const take = (id: number): Opening | undefined => {
    const opening = openings.get(id)
    openings.delete(id)
    return opening
  }
  return {
    connect(run, target, signal) {
      signal.throwIfAborted()
      const id = ++lastId
      return new Promise((resolve, reject) => {
        const onAbort = (): void => {
          if (take(id) === undefined) return
          tell({ kind: 'closed', id })
          reject(signal.reason instanceof Error ? signal.reason : new Error('aborted'))
        }
        signal.addEventListener('abort', onAbort, { once: true })
        const settle = <Outcome>(done: (outcome: Outcome) => void) => {
          return (outcome: Outcome): void => {
            signal.removeEventListener('abort', onAbort)
            done(outcome)
          }
        }
        openings.set(id, { resolve: settle(resolve), reject: settle(reject) })
        tell({ kind: 'connect', id, run, target })
      })
    },
    receive(event, socket) {
      const opening = take(event.id)
      if (event.kind === 'unconnected') {
        if (event.message === null) opening?.resolve(null)
        else opening?.reject(new Error(event.message))
      } else if (socket === null || opening === undefined) {
        socket?.destroy()
        tell({ kind: 'closed', id: event.id })
        opening?.reject(new Error('the worker handed over no socket'))
      } else {
        socket.allowHalfOpen = true // each direction ends by itself
        socket.once('close', () => tell({ kind: 'closed', id: event.id }))
        opening.resolve(touchWhileUsed(socket, () => tell({ kind: 'used', id: event.id })))
      }
    },
    end() {
      for (const { reject } of openings.values()) reject(new Error('the worker of this machine has ended'))
      openings.clear()
    },
  }
}

import type { Socket } from 'node:net'
import type { ConnectNear } from '../../control/streams/near-workers.ts'
import { awaitAnswer, type Answer } from '../../lib/await-answer.ts'
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

/** Makes the connections of one process of the worker. */
export function makeNearConnections(tell: (order: ConnectionOrder) => void): NearConnections {
  const openings = new Map<number, Answer<Socket | null>>()
  let lastId = 0
  const take = (id: number): Answer<Socket | null> | undefined => {
    const opening = openings.get(id)
    openings.delete(id)
    return opening
  }
  return {
    connect(run, target, signal) {
      const id = ++lastId
      return awaitAnswer<Socket | null>(signal, {
        ask: (opening) => {
          openings.set(id, opening)
          tell({ kind: 'connect', id, run, target })
        },
        onAbort: () => {
          if (take(id) !== undefined) tell({ kind: 'closed', id })
        },
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

import type { Socket } from 'node:net'
import type { ConnectNear } from '../../worker/drivers/driver.ts'
import type { ConnectionOrder, WorkerEvent } from './messages.ts'

/** Opens connections to sandboxes for `up`, in the process of its worker. */
export type ConnectionServer = { serve(order: ConnectionOrder): void }

type ServerInput = {
  readonly connect: ConnectNear
  /** Sends a message to `up`, with a socket that then belongs to `up` alone. */
  readonly tell: (event: WorkerEvent, socket?: Socket) => void
}

type Served = { readonly giveUp: AbortController; touch(): void; close(): void }

/**
 * Makes the server. `up` gets the sockets themselves, so no byte of a connection passes through this process. What is counted here
 * ends when `up` says that it has closed the connection.
 */
export function makeConnectionServer({ connect, tell }: ServerInput): ConnectionServer {
  const served = new Map<number, Served>()

  async function open({ id, run, target }: Extract<ConnectionOrder, { kind: 'connect' }>): Promise<void> {
    const giveUp = new AbortController()
    const nothing = (): void => undefined
    served.set(id, { giveUp, touch: nothing, close: nothing })
    try {
      const opened = await connect(run, target, giveUp.signal)
      if (opened !== null && served.has(id)) {
        served.set(id, { giveUp, touch: () => opened.touch(), close: () => opened.socket.destroy() })
        tell({ kind: 'connected', id }, opened.socket)
        return
      }
      opened?.socket.destroy()
      served.delete(id)
      tell({ kind: 'unconnected', id, message: null })
    } catch (error) {
      served.delete(id)
      tell({ kind: 'unconnected', id, message: error instanceof Error ? error.message : String(error) })
    }
  }

  return {
    serve(order) {
      const known = served.get(order.id)
      if (order.kind === 'connect') void open(order)
      else if (order.kind === 'used') known?.touch()
      else {
        served.delete(order.id)
        known?.giveUp.abort(new Error('the connection is not wanted any more'))
        known?.close()
      }
    },
  }
}

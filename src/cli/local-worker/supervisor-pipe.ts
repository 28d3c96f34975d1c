import type { Socket } from 'node:net'
import type { ConnectionServer } from './serve-connections.ts'
import type { WorkerEvent, WorkerOrder, WorkerStart } from './messages.ts'

/** The side of the worker's process of the pipe between it and `up`. */
export type SupervisorPipe = {
  readonly started: Promise<WorkerStart>
  /** Aborted when `up` ends its worker. */
  readonly stopping: AbortSignal
  /** The fingerprint of the API's certificate now, in hex. Null for plain HTTP. */
  fingerprint(): string | null
  /** Serves orders about connections from now on. */
  serveConnections(server: ConnectionServer): void
  /** Sends a message to `up`, with a socket that then belongs to `up` alone. */
  tell(event: WorkerEvent, socket?: Socket): void
  /** Closes the pipe after what was sent. */
  close(): void
}

/** Opens the pipe. The process ends when `up` has ended, because the next `up` starts a worker. */
export function openSupervisorPipe(readMetrics: () => Promise<string>): SupervisorPipe {
  const started = Promise.withResolvers<WorkerStart>()
  const stopping = new AbortController()
  let fingerprint: string | null = null
  let connections: ConnectionServer | null = null
  const onClosed = (): void => process.exit(1)
  const tell = (event: WorkerEvent, socket?: Socket): void => {
    process.send?.(event, socket, {}, () => undefined) // if `up` has ended, `onClosed` is called
  }
  process.on('disconnect', onClosed)
  process.on('message', (order: WorkerOrder) => {
    if (order.kind === 'start') {
      fingerprint = order.start.fingerprint
      started.resolve(order.start)
    } else if (order.kind === 'fingerprint') fingerprint = order.fingerprint
    else if (order.kind === 'stop') stopping.abort(new Error('`up` ends its worker'))
    else if (order.kind === 'metrics')
      void readMetrics().then(
        (text) => tell({ kind: 'metrics', id: order.id, text }),
        () => tell({ kind: 'metrics', id: order.id, text: '' }),
      )
    else connections?.serve(order)
  })
  return {
    started: started.promise,
    stopping: stopping.signal,
    fingerprint: () => fingerprint,
    serveConnections: (server) => {
      connections = server
    },
    tell,
    close() {
      process.off('disconnect', onClosed)
      if (process.connected) process.disconnect()
    },
  }
}

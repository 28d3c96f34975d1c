import { openParentPipe, type ParentPipe } from '../child/parent-pipe.ts'
import type { ConnectionServer } from './serve-connections.ts'
import type { WorkerEvent, WorkerOrder, WorkerStart } from './messages.ts'

/** The side of the worker's process of the pipe between it and `up`. */
export type SupervisorPipe = ParentPipe<WorkerEvent> & {
  readonly started: Promise<WorkerStart>
  /** Aborted when `up` ends its worker. */
  readonly stopping: AbortSignal
  /** The fingerprint of the API's certificate now, in hex. Null for plain HTTP. */
  fingerprint(): string | null
  /** Serves orders about connections from now on. */
  serveConnections(server: ConnectionServer): void
}

/** Opens the pipe. The process ends when `up` has ended, because the next `up` starts a worker. */
export function openSupervisorPipe(readMetrics: () => Promise<string>): SupervisorPipe {
  const started = Promise.withResolvers<WorkerStart>()
  const stopping = new AbortController()
  let fingerprint: string | null = null
  let connections: ConnectionServer | null = null
  const pipe = openParentPipe<WorkerOrder, WorkerEvent>((order) => {
    if (order.kind === 'start') {
      fingerprint = order.start.fingerprint
      started.resolve(order.start)
    } else if (order.kind === 'fingerprint') fingerprint = order.fingerprint
    else if (order.kind === 'stop') stopping.abort(new Error('`up` ends its worker'))
    else if (order.kind === 'metrics')
      void readMetrics().then(
        (text) => pipe.tell({ kind: 'metrics', id: order.id, text }),
        () => pipe.tell({ kind: 'metrics', id: order.id, text: '' }),
      )
    else connections?.serve(order)
  })
  return {
    ...pipe,
    started: started.promise,
    stopping: stopping.signal,
    fingerprint: () => fingerprint,
    serveConnections: (server) => {
      connections = server
    },
  }
}

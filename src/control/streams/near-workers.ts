import type { Duplex } from 'node:stream'
import type { RunId, WorkerId } from '../../domain/ids.ts'

/**
 * Connects to a loopback address of a run's sandbox. Resolves with null if only a channel can do it. Rejects with the reason, such as
 * `connect 127.0.0.1:80: Connection refused (os error 111)`.
 */
export type ConnectNear = (
  run: RunId,
  target: { readonly host: string; readonly port: number },
  signal: AbortSignal,
) => Promise<Duplex | null>

/** The workers on this machine whose process hands over sockets. Connections to their sandboxes need no channel over the network. */
export type NearWorkers = {
  /** Adds a worker. The returned function removes it. */
  add(worker: WorkerId, connect: ConnectNear): () => void
  of(worker: WorkerId): ConnectNear | undefined
}

/** Makes the workers of a process: none. */
export function makeNearWorkers(): NearWorkers {
  const workers = new Map<WorkerId, ConnectNear>()
  return {
    add(worker, connect) {
      workers.set(worker, connect)
      return () => workers.delete(worker)
    },
    of: (worker) => workers.get(worker),
  }
}

import { Socket } from 'node:net'
import { extname, join } from 'node:path'
import type { ConnectNear } from '../../control/streams/near-workers.ts'
import { endOfChild, startChild, tellChild } from '../child/start-child.ts'
import type { WorkerEvent, WorkerOrder, WorkerStart } from './messages.ts'
import { makeNearConnections } from './near-connections.ts'

/** A process of the worker of `up`. */
export type WorkerProcess = {
  readonly pid: number | undefined
  /** Resolves with how the process ended, after its last message. */
  readonly ended: Promise<string>
  /** Asks it to end cleanly. */
  stop(): void
  tellFingerprint(fingerprint: string | null): void
  /** Reads its metrics in the text format. Resolves with an empty text when it ends before it answers. */
  readMetrics(): Promise<string>
}

type Callbacks = {
  /** The driver is open. `connect` is null if it opens no connections to sandboxes. */
  readonly onOpened: (connect: ConnectNear | null) => void
  readonly onReady: () => void
  /** No driver works on this machine. The process ends. */
  readonly onUnusable: (message: string) => void
}

const PROGRAM = join(import.meta.dirname, `worker-process${extname(import.meta.filename)}`)

/** Starts a process of the worker. */
export function startWorkerProcess(start: WorkerStart, { onOpened, onReady, onUnusable }: Callbacks): WorkerProcess {
  const child = startChild(PROGRAM)
  const tell = (order: WorkerOrder): void => tellChild(child, order)
  const near = makeNearConnections(tell)
  const scrapes = new Map<number, (text: string) => void>()
  let lastScrape = 0
  let { fingerprint } = start
  child.on('message', (message, handle) => {
    const event = message as WorkerEvent // sent by worker-process.ts
    if (event.kind === 'opened') onOpened(event.connects ? near.connect : null)
    else if (event.kind === 'ready') onReady()
    else if (event.kind === 'unusable') onUnusable(event.message)
    else if (event.kind === 'metrics') {
      scrapes.get(event.id)?.(event.text)
      scrapes.delete(event.id)
    } else near.receive(event, handle instanceof Socket ? handle : null)
  })
  tell({ kind: 'start', start })
  return {
    pid: child.pid,
    ended: endOfChild(child).finally(() => {
      near.end()
      for (const answer of scrapes.values()) answer('')
    }),
    stop: () => tell({ kind: 'stop' }),
    tellFingerprint(next) {
      if (next === fingerprint) return
      fingerprint = next
      tell({ kind: 'fingerprint', fingerprint })
    },
    readMetrics() {
      if (!child.connected) return Promise.resolve('')
      const id = ++lastScrape
      return new Promise((resolve) => {
        scrapes.set(id, resolve)
        tell({ kind: 'metrics', id })
      })
    },
  }
}

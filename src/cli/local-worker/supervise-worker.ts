import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { WorkerId } from '../../domain/ids.ts'
import type { ConnectNear } from '../../control/streams/near-workers.ts'
import type { Log } from '../../lib/log.ts'
import { keepRestarting, type ChildOutcome } from '../child/keep-restarting.ts'
import type { WorkerStart } from './messages.ts'
import { startWorkerProcess, type WorkerProcess } from './worker-process-handle.ts'

/** The worker of `up`, in a process of its own that is started again whenever it ends. */
export type SupervisedWorker = {
  /** Resolves once the worker can run sandboxes, once no driver can run them here, or once its first process has ended. */
  readonly begun: Promise<void>
  /** Reads the worker's metrics. Resolves with an empty text while it has none. */
  readMetrics(): Promise<string>
} & AsyncDisposable

type SuperviseInput = {
  readonly clock: Clock
  readonly log: Log
  /** Registers the worker, and resolves with what its next process needs. */
  readonly start: () => Promise<Omit<WorkerStart, 'fingerprint'>>
  /** The fingerprint of the API's certificate now. */
  readonly fingerprint: () => string | null
  /** Called when the worker can connect to its sandboxes. The returned function is called when its process has ended. */
  readonly onConnects: (worker: WorkerId, connect: ConnectNear) => () => void
  /** Called whenever a process of the worker is ready. */
  readonly onReady: () => void
  /** Called when no driver works on this machine. No other process follows. */
  readonly onUnusable: (worker: WorkerId, message: string) => Promise<void>
}

/** How often the worker's fingerprint is compared with that of the API. */
const FINGERPRINT_MS = 1_000
const METRICS_LIMIT_MS = 3_000

/** Starts the worker. Disposing it ends the worker cleanly. */
export function superviseWorker(input: SuperviseInput): SupervisedWorker {
  const { clock, log } = input
  const stopping = new AbortController()
  const begun = Promise.withResolvers<void>()
  let current: WorkerProcess | null = null
  let wasReady = false

  /** Runs one process to its end. No other follows if no driver works here. */
  async function runOnce(): Promise<ChildOutcome> {
    const start = { ...(await input.start()), fingerprint: input.fingerprint() }
    if (stopping.signal.aborted) return 'over'
    let isReady = false
    let unusable: string | null = null
    let disconnect = (): void => undefined
    const worker = startWorkerProcess(start, {
      onOpened(connect) {
        if (connect !== null) disconnect = input.onConnects(start.worker_id, connect)
      },
      onReady() {
        isReady = true
        wasReady = true
        input.onReady()
        begun.resolve()
      },
      onUnusable(message) {
        unusable = message
      },
    })
    current = worker
    const keepTelling = setInterval(() => worker.tellFingerprint(input.fingerprint()), FINGERPRINT_MS)
    const onStop = (): void => worker.stop()
    stopping.signal.addEventListener('abort', onStop, { once: true })
    const how = await worker.ended
    stopping.signal.removeEventListener('abort', onStop)
    clearInterval(keepTelling)
    current = null
    disconnect()
    if (stopping.signal.aborted) return 'over'
    if (unusable !== null && !wasReady) {
      await input.onUnusable(start.worker_id, unusable)
      return 'over'
    }
    log.error({ how, worker_pid: worker.pid }, 'the worker of this machine ended; its sandboxes continue')
    return isReady ? 'was ready' : 'was unready'
  }

  const what = 'the worker of this machine'
  const run = (): Promise<ChildOutcome> => runOnce().finally(() => begun.resolve())
  const supervising = keepRestarting({ clock, log, what }, run, stopping.signal)
  return {
    begun: begun.promise,
    async readMetrics() {
      const over = new AbortController()
      const late = interruptibleSleep(clock, METRICS_LIMIT_MS, over.signal).then(() => '')
      const text = await Promise.race([current?.readMetrics() ?? '', late])
      over.abort()
      return text
    },
    async [Symbol.asyncDispose]() {
      stopping.abort(new Error('`up` ends'))
      await supervising
    },
  }
}

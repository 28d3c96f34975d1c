import type { UseSeries } from '../../contract/streams/metrics-protocol.ts'
import type { SandboxId } from '../../domain/ids.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import type { UsePoint, UseRange } from '../../domain/sandboxes/use-points.ts'
import { joinSignals } from '../../lib/join-signals.ts'
import * as runs from '../../store/sandboxes/runs.ts'
import type { BaseDeps } from '../deps.ts'
import { getSummary, type SandboxReader } from '../sandboxes/read-sandboxes.ts'
import { askWorker } from './ask-worker.ts'
import type { WorkerStreams } from './open-worker-stream.ts'
import { acquireStreamPermit, openPermittedStream, type StreamPermitDeps } from './stream-permit.ts'
import { problemOfCallerEnd } from './watch-caller.ts'

type MetricsDeps = Pick<BaseDeps, 'db' | 'clock' | 'log'> & SandboxReader & WorkerStreams & StreamPermitDeps

/** The longest series of points, in bytes: 3,600 points of 250 bytes fit four times. */
const SERIES_LIMIT_BYTES = 4 * 1024 * 1024
/** How long a worker may take to answer, its dialling included. A live one takes milliseconds. */
const ANSWER_WAIT_MS = 5_000

/**
 * Reads what a sandbox used, from the worker of its latest run. Throws `sandbox_not_found`, and `unavailable` when the worker does
 * not answer.
 */
export async function readMetrics(
  deps: MetricsDeps,
  caller: Caller,
  {
    id,
    range,
    stepMs,
    signal,
  }: {
    readonly id: SandboxId
    readonly range: UseRange
    readonly stepMs: number
    readonly signal: AbortSignal
  },
): Promise<UseSeries> {
  await getSummary(deps, caller, { id })
  const run = await deps.db.asOrg(caller.org_id, (q) => runs.lastPlacedRunOf(q, id))
  if (run === null) return { stepMs, points: [] }
  const query = { get: 'series', sandbox_id: id, range, stepMs } as const
  const target = { worker_id: run.worker_id, purpose: { kind: 'metrics', query } } as const
  using either = joinSignals(signal, AbortSignal.timeout(ANSWER_WAIT_MS))
  return (await askWorker(deps, target, { signal: either.signal, limitBytes: SERIES_LIMIT_BYTES })) as UseSeries
}

/**
 * Follows what a sandbox uses: each point as the worker samples it. The last item is null if the run ended, or if the sandbox
 * doesn't run. Without it, the worker is gone or the caller lost its rights. Throws `sandbox_not_found`, `rate_limited` and
 * `unavailable`.
 */
export async function followMetrics(
  deps: MetricsDeps,
  caller: Caller,
  { id, signal }: { readonly id: SandboxId; readonly signal: AbortSignal },
): Promise<AsyncIterable<UsePoint | null>> {
  await getSummary(deps, caller, { id })
  const run = await deps.db.asOrg(caller.org_id, (q) => runs.lastPlacedRunOf(q, id))
  if (run?.is_open !== true) return noPoints()
  const permit = acquireStreamPermit(deps, caller, { limitMs: null, signal })
  try {
    const query = { get: 'follow', sandbox_id: id } as const
    const target = { worker_id: run.worker_id, purpose: { kind: 'metrics', query } } as const
    const stream = await openPermittedStream(deps, target, permit)
    return forwardPoints(deps, stream, { id, permit })
  } catch (error) {
    permit.release()
    throw permit.signal.aborted ? problemOfCallerEnd(permit.signal.reason) : error
  }
}

async function* noPoints(): AsyncGenerator<UsePoint | null> {
  yield await Promise.resolve(null)
}

type Followed = { readonly id: SandboxId; readonly permit: ReturnType<typeof acquireStreamPermit> }

async function* forwardPoints(
  deps: Pick<BaseDeps, 'log'>,
  stream: AsyncIterable<Buffer> & { destroy(): void },
  { id, permit }: Followed,
): AsyncGenerator<UsePoint | null> {
  try {
    let rest = ''
    for await (const piece of stream) {
      const lines = (rest + piece.toString('utf8')).split('\n') // points are ASCII, so no character is cut
      rest = lines.pop() ?? ''
      for (const line of lines) {
        const point = JSON.parse(line) as UsePoint | null
        yield point
        if (point === null) return
      }
    }
  } catch (error) {
    if (!permit.signal.aborted) deps.log.warn({ error, sandbox_id: id }, 'a stream of metrics failed')
  } finally {
    permit.release()
    stream.destroy()
  }
}

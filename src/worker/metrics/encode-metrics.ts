import type { MetricsQuery } from '../../contract/streams/metrics-protocol.ts'
import type { SandboxId } from '../../domain/ids.ts'
import type { UsePoint } from '../../domain/sandboxes/use-points.ts'
import type { SandboxMetrics } from './sandbox-metrics.ts'

type Readable = Pick<SandboxMetrics, 'read' | 'subscribe' | 'latest'>

/** Answers a query as `metrics-protocol.ts` describes. */
export async function* encodeMetrics(
  metrics: Readable,
  query: MetricsQuery,
  signal: AbortSignal,
): AsyncGenerator<string> {
  switch (query.get) {
    case 'series':
      yield JSON.stringify(await metrics.read(query.sandbox_id, query.range, query.stepMs))
      return
    case 'latest':
      yield JSON.stringify(metrics.latest(query.org_id))
      return
    case 'follow':
      for await (const point of follow(metrics, query.sandbox_id, signal)) yield `${JSON.stringify(point)}\n`
  }
}

/** Yields each new point, and null at the end of the run. A reader that is too slow misses points, but never the end. */
async function* follow(metrics: Readable, sandbox: SandboxId, signal: AbortSignal): AsyncGenerator<UsePoint | null> {
  let next = Promise.withResolvers<UsePoint | null>()
  let hasEnded = signal.aborted
  const end = (): void => {
    hasEnded = true
    next.resolve(null)
  }
  const stop = metrics.subscribe(sandbox, (point) => {
    if (point === null) end()
    else next.resolve(point)
  })
  signal.addEventListener('abort', end, { once: true })
  try {
    while (!hasEnded) {
      const point = await next.promise
      next = Promise.withResolvers<UsePoint | null>()
      if (point !== null) yield point
    }
    yield null
  } finally {
    stop()
    signal.removeEventListener('abort', end)
  }
}

import { OPERATIONS } from '../../contract/operations.ts'
import type { METRICS_OPERATIONS } from '../../contract/streams/metrics-operations.ts'
import { followMetrics, readMetrics } from '../../control/streams/read-metrics.ts'
import { readFleetUse, readOrgUse, type RunningSandbox } from '../../control/streams/read-use.ts'
import { asId, type SandboxId } from '../../domain/ids.ts'
import { stepFor, USE_POINTS_MAX, type UsePoint, type UseRange } from '../../domain/sandboxes/use-points.ts'
import { renderUsePoint, sortByUse, sumUse, type UseOrder } from '../../domain/sandboxes/use-sums.ts'
import { HOUR_MS } from '../../domain/usage/metering.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'
import { parseInstant, refuseField, type Handler, type HandlerFactory } from './handler.ts'

/** Creates the handlers of metrics. */
export function makeMetricsHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof METRICS_OPERATIONS, Handler> {
  return {
    read_sandbox_metrics: handler(OPERATIONS.read_sandbox_metrics, async ({ params, query }, { caller, signal }) => {
      const range = parseRange(
        query,
        call(({ clock }) => clock.now()),
      )
      const step = query.step ?? stepFor(range)
      const points = Math.ceil((range.untilMs - range.sinceMs) / (step * 1_000))
      if (points > USE_POINTS_MAX)
        refuseField('query.step', step, `a step of which the range has at most ${String(USE_POINTS_MAX)}`)
      const asked = { id: sandboxOf(params), range, stepMs: step * 1_000, signal: signal() }
      const series = await call(readMetrics, caller, asked)
      return JSON.stringify({ step_secs: series.stepMs / 1_000, data: series.points.map(renderUsePoint) })
    }),
    follow_sandbox_metrics: handler(OPERATIONS.follow_sandbox_metrics, async ({ params }, { caller, signal }) => ({
      events: renderEvents(await call(followMetrics, caller, { id: sandboxOf(params), signal: signal() })),
    })),
    read_org_metrics: handler(OPERATIONS.read_org_metrics, async ({ query }, { caller, signal }) => {
      const { sandboxes } = await call(readOrgUse, caller, signal())
      return JSON.stringify(
        renderUse(
          sandboxes,
          query,
          call(({ clock }) => clock.now()),
          renderRunning,
        ),
      )
    }),
    read_installation_metrics: handler(OPERATIONS.read_installation_metrics, async ({ query }, { caller, signal }) => {
      const { sandboxes, silent_workers } = await call(readFleetUse, caller, signal())
      const render = (sandbox: RunningSandbox): object => {
        const { org, worker } = sandbox
        return { ...renderRunning(sandbox), org, worker }
      }
      const now = call(({ clock }) => clock.now())
      return JSON.stringify({ ...renderUse(sandboxes, query, now, render), silent_workers })
    }),
  }
}

function sandboxOf({ sandbox_id }: { readonly sandbox_id: string }): SandboxId {
  return asId<SandboxId>(sandbox_id.toLowerCase())
}

function parseRange(query: { readonly since?: string; readonly until?: string }, now: Date): UseRange {
  const untilMs = (parseInstant(query.until) ?? now).getTime()
  const sinceMs = parseInstant(query.since)?.getTime() ?? untilMs - HOUR_MS
  if (sinceMs >= untilMs)
    refuseField('query.since', query.since, `an instant before until, ${new Date(untilMs).toISOString()}`)
  return { sinceMs, untilMs }
}

async function* renderEvents(points: AsyncIterable<UsePoint | null>): AsyncGenerator<string> {
  for await (const point of points)
    yield point === null
      ? 'event: end\ndata: {}\n\n'
      : `event: point\ndata: ${JSON.stringify(renderUsePoint(point))}\n\n`
}

const LIMIT_DEFAULT = 100

function renderUse(
  sandboxes: readonly RunningSandbox[],
  { order = 'cpu', limit = LIMIT_DEFAULT }: { readonly order?: UseOrder; readonly limit?: number },
  now: Date,
  render: (sandbox: RunningSandbox) => object,
): object {
  const data = sortByUse(sandboxes, order).slice(0, limit).map(render)
  return { at: now.toISOString(), ...sumUse(sandboxes), data }
}

function renderRunning({ id, name, slug, vcpus, memory_mib, started_at, use }: RunningSandbox): object {
  return { id, name, slug, vcpus, memory_mib, started_at, latest: use === null ? null : renderUsePoint(use) }
}

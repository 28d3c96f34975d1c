import { isTerminal } from '../../../domain/sandboxes/lifecycle.ts'
import { measuredMs } from '../../../domain/sandboxes/start-phases.ts'
import type { Clock } from '../../../lib/clock.ts'
import type { SpanAttributes, Tracer } from '../../../lib/tracing/tracer.ts'
import type { TransitionObserver } from './transition.ts'
import type { TransitionStep } from './transition-step.ts'

/**
 * Records the spans of starts from their transitions. The parent of these spans is stored with the run, so any process
 * can record them: the leader records the placement, and the process that gets the worker's report records the start.
 */
export function makeStartTracer(tracer: Tracer, clock: Pick<Clock, 'now'>): Required<TransitionObserver> {
  return {
    onTransitions(steps) {
      const committedMs = clock.now().getTime()
      for (const step of steps) {
        const { trace_parent: traceParent } = step.row
        if (traceParent !== null) traceStep({ tracer, traceParent, committedMs }, step)
      }
    },
  }
}

type Trace = { readonly tracer: Tracer; readonly traceParent: string; readonly committedMs: number }

function traceStep({ tracer, traceParent, committedMs }: Trace, step: TransitionStep): void {
  const { request, row, status, at } = step
  const isRunning = request.event === 'worker_running'
  const hasFailed = isTerminal(status) && row.started_at === null
  const error = status === 'failed' ? (request.cause.message ?? 'failed') : null
  const { opened_at, placed_at } = row
  if (opened_at === null) return
  const common = { kind: 'internal', attributes: attributesOf(step), error } as const
  const untilMs = Math.max(at.getTime(), committedMs)
  if (request.event === 'placed' || (hasFailed && placed_at === null)) {
    tracer.record(traceParent, { ...common, name: 'placement', fromMs: opened_at.getTime(), untilMs })
    return
  }
  if (placed_at === null || (!isRunning && !hasFailed)) return
  const placedMs = placed_at.getTime()
  const { phases = [], beganAt } = request.start ?? {}
  if (phases.length === 0) {
    tracer.record(traceParent, { ...common, name: 'start', fromMs: placedMs, untilMs })
    return
  }
  // Clocks of machines differ, so the worker reports only durations. If it did not say how long ago the start began,
  // the start seems to end with the commit of its report.
  const lastsMs = measuredMs(phases)
  const beganMs = Math.max(placedMs, Math.min(beganAt?.getTime() ?? untilMs, untilMs - lastsMs))
  const startedMs = Math.min(beganMs + lastsMs, untilMs)
  const span = (name: string, fromMs: number, toMs: number) => ({ ...common, error: null, name, fromMs, untilMs: toMs })
  tracer.record(traceParent, span('delivery', placedMs, beganMs))
  const parent = tracer.record(traceParent, { ...span('start', beganMs, startedMs), error })
  for (const { phase, offset_ms, duration_ms, has_failed } of phases) {
    const phaseMs = Math.min(beganMs + offset_ms, startedMs)
    const until = Math.min(phaseMs + duration_ms, startedMs)
    tracer.record(parent, {
      ...span(`start ${phase}`, phaseMs, until),
      error: has_failed === true ? error : null,
    })
  }
  tracer.record(traceParent, span('report', startedMs, untilMs))
}

function attributesOf({ request, row, run_id }: TransitionStep): SpanAttributes {
  const { worker, facts, start } = request
  const digest = facts?.['image_digest']
  return {
    'sandyard.sandbox.id': row.id,
    'sandyard.org.id': row.org_id,
    ...(run_id === null ? {} : { 'sandyard.run.id': run_id }),
    ...(row.worker_id === null ? {} : { 'sandyard.worker.id': row.worker_id }),
    ...(worker === undefined ? {} : { 'sandyard.worker.id': worker.id, 'sandyard.worker.name': worker.name }),
    ...(start === undefined ? {} : { 'sandyard.driver': start.driver }),
    ...(digest === undefined ? {} : { 'sandyard.image.digest': digest }),
  }
}

import { isTerminal } from '../../domain/sandboxes/lifecycle.ts'
import { measuredMs } from '../../domain/sandboxes/start-phases.ts'
import type { SpanAttributes, Tracer } from '../../lib/tracing/tracer.ts'
import type { TransitionObserver } from './transition.ts'
import type { TransitionStep } from './transition-step.ts'

/**
 * Records the spans of starts from their transitions. The parent of these spans is stored with the run, so any process
 * can record them: the leader records the placement, and the process that gets the worker's report records the start.
 */
export function makeStartTracer(tracer: Tracer): Required<TransitionObserver> {
  return {
    onTransitions(steps) {
      for (const step of steps)
        if (step.row.trace_parent !== null) traceStep({ tracer, traceParent: step.row.trace_parent }, step)
    },
  }
}

type Trace = { readonly tracer: Tracer; readonly traceParent: string }

function traceStep({ tracer, traceParent }: Trace, step: TransitionStep): void {
  const { request, row, status, at } = step
  const isRunning = request.event === 'worker_running'
  const hasFailed = isTerminal(status) && row.started_at === null
  const error = status === 'failed' ? (request.cause.message ?? 'failed') : null
  const { opened_at, placed_at } = row
  if (opened_at === null) return
  const common = { kind: 'internal', attributes: attributesOf(step), error } as const
  if (request.event === 'placed' || (hasFailed && placed_at === null)) {
    tracer.record(traceParent, { ...common, name: 'placement', fromMs: opened_at.getTime(), untilMs: at.getTime() })
    return
  }
  if (placed_at === null || (!isRunning && !hasFailed)) return
  const placedMs = placed_at.getTime()
  const untilMs = Math.max(placedMs, at.getTime())
  const phases = request.start?.phases ?? []
  // Clocks of machines differ. The worker reports only durations, and the start ended when its report arrived.
  const beganMs = Math.max(placedMs, untilMs - measuredMs(phases))
  const fromMs = phases.length === 0 ? placedMs : beganMs
  if (phases.length > 0)
    tracer.record(traceParent, { ...common, error: null, name: 'delivery', fromMs: placedMs, untilMs: beganMs })
  const parent = tracer.record(traceParent, { ...common, name: 'start', fromMs, untilMs })
  for (const { phase, offset_ms, duration_ms, has_failed } of phases) {
    const phaseMs = Math.min(beganMs + offset_ms, untilMs)
    tracer.record(parent, {
      ...common,
      name: `start ${phase}`,
      fromMs: phaseMs,
      untilMs: Math.min(phaseMs + duration_ms, untilMs),
      error: has_failed === true ? error : null,
    })
  }
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

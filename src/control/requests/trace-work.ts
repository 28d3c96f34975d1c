import type { SpanAttributes, Tracer } from '../../lib/tracing/tracer.ts'
import type { BaseDeps } from '../deps.ts'

/** The dependency of what records traces. Absent: no traces are recorded. */
export type TraceDeps = { readonly tracer?: Tracer }

type Work = {
  readonly name: string
  /** The span that this work is part of. Null: it is not traced. */
  readonly traceParent: string | null
  readonly attributes: SpanAttributes
  /** The time that rows have for the beginning of this work, or null. What follows must not seem to begin earlier. */
  readonly begunAt: Date | null
}

/** Does `work`, and records it as a span if it belongs to a trace. */
export async function traceWork<T>(
  { tracer, clock }: TraceDeps & Pick<BaseDeps, 'clock'>,
  { name, traceParent, attributes, begunAt }: Work,
  work: () => Promise<T>,
): Promise<T> {
  if (tracer === undefined || traceParent === null) return work()
  const fromMs = (begunAt ?? clock.now()).getTime()
  const beganMs = clock.monotonicMs()
  const record = (error: string | null): void => {
    const untilMs = fromMs + clock.monotonicMs() - beganMs
    tracer.record(traceParent, { name, kind: 'internal', fromMs, untilMs, attributes, error })
  }
  try {
    const result = await work()
    record(null)
    return result
  } catch (error) {
    record('refused')
    throw error
  }
}

import type { Random } from '../random.ts'
import type { Sampler } from './sampler.ts'
import { drawSpanId, drawTraceId, parseTraceParent, renderTraceParent } from './trace-context.ts'

export type SpanAttributes = Readonly<Record<string, string | number | boolean>>

/** A span that has ended. Times are in milliseconds since 1970. */
export type Span = {
  readonly traceId: string
  readonly spanId: string
  readonly parentSpanId: string | null
  readonly name: string
  readonly kind: 'server' | 'internal'
  readonly fromMs: number
  readonly untilMs: number
  readonly attributes: SpanAttributes
  /** What failed. Null: nothing did. */
  readonly error: string | null
}

type SpanContent = Omit<Span, 'traceId' | 'spanId' | 'parentSpanId'>

/** A span that has begun. Its `traceParent` is the parent of the spans within it. */
export type OpenSpan = { readonly traceParent: string; end(content: SpanContent): void }

/** Begins traces and records spans. */
export type Tracer = {
  /** Begins the first span of this program in a trace: of the client's, or a new one. Null if it is not sampled. */
  beginTrace(clientsTraceParent: string | null): OpenSpan | null
  /** Records a span, and returns the parent of the spans within it. */
  record(traceParent: string, content: SpanContent): string
}

/** Creates a tracer. `onSpan` gets each span that has ended. */
export function makeTracer(deps: {
  readonly random: Random
  readonly sampler: Sampler
  readonly onSpan: (span: Span) => void
}): Tracer {
  const { random, sampler, onSpan } = deps
  return {
    beginTrace(clientsTraceParent) {
      const parent = clientsTraceParent === null ? null : parseTraceParent(clientsTraceParent)
      const traceId = parent?.traceId ?? drawTraceId(random)
      if (!sampler(traceId, parent)) return null
      const ids = { traceId, spanId: drawSpanId(random) }
      return {
        traceParent: renderTraceParent({ ...ids, isSampled: true }),
        end: (content) => {
          onSpan({ ...ids, parentSpanId: parent?.spanId ?? null, ...content })
        },
      }
    },
    record(traceParent, content) {
      const parent = parseTraceParent(traceParent)
      if (parent === null) return traceParent // a later version of this program may store another format
      const spanId = drawSpanId(random)
      onSpan({ traceId: parent.traceId, spanId, parentSpanId: parent.spanId, ...content })
      return renderTraceParent({ ...parent, spanId })
    },
  }
}

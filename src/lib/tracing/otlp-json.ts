import type { Span, SpanAttributes } from './tracer.ts'

const KINDS = { internal: 1, server: 2 } as const
const STATUS_ERROR = 2

/** Renders spans as the body of an OTLP/HTTP request in JSON (`ExportTraceServiceRequest`). */
export function renderOtlp(spans: readonly Span[], resource: SpanAttributes): string {
  return JSON.stringify({
    resourceSpans: [
      {
        resource: { attributes: renderAttributes(resource) },
        scopeSpans: [{ scope: { name: 'sandyard' }, spans: spans.map(renderSpan) }],
      },
    ],
  })
}

function renderSpan({ traceId, spanId, parentSpanId, name, kind, fromMs, untilMs, attributes, error }: Span): object {
  return {
    traceId,
    spanId,
    ...(parentSpanId === null ? {} : { parentSpanId }),
    name,
    kind: KINDS[kind],
    startTimeUnixNano: nanoseconds(fromMs),
    endTimeUnixNano: nanoseconds(Math.max(fromMs, untilMs)),
    attributes: renderAttributes(attributes),
    ...(error === null ? {} : { status: { code: STATUS_ERROR, message: error } }),
  }
}

function renderAttributes(attributes: SpanAttributes): readonly object[] {
  return Object.entries(attributes).map(([key, value]) => ({ key, value: renderValue(value) }))
}

function renderValue(value: string | number | boolean): object {
  if (typeof value === 'string') return { stringValue: value }
  if (typeof value === 'boolean') return { boolValue: value }
  return Number.isInteger(value) ? { intValue: String(value) } : { doubleValue: value }
}

/** Nanoseconds as a decimal text: as a number, they would lose their last digits. */
function nanoseconds(ms: number): string {
  return String(BigInt(Math.round(ms * 1000)) * 1000n)
}

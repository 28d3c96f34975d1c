import type { Random } from '../random.ts'

/** The identity of a span, as it crosses processes. */
export type SpanContext = {
  /** 32 hexadecimal digits. */
  readonly traceId: string
  /** 16 hexadecimal digits. */
  readonly spanId: string
  readonly isSampled: boolean
}

const TRACE_PARENT = /^(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/

/**
 * Parses a `traceparent` header (W3C Trace Context). Null if it is malformed: the receiver then begins a new trace. A
 * later version than 00 may have more fields at its end, which are ignored.
 */
export function parseTraceParent(text: string): SpanContext | null {
  const [, version, traceId, spanId, flags = '', more] = TRACE_PARENT.exec(text) ?? []
  if (traceId === undefined || spanId === undefined || (version === '00' && more !== undefined)) return null
  return { traceId, spanId, isSampled: (parseInt(flags, 16) & 1) === 1 }
}

/** Renders the context of a sampled span as a `traceparent`. */
export function renderTraceParent({ traceId, spanId }: SpanContext): string {
  return `00-${traceId}-${spanId}-01`
}

/** Draws the id of a trace, which is never all zeros. */
export function drawTraceId(random: Random): string {
  return drawId(random, 16)
}

/** Draws the id of a span, which is never all zeros. */
export function drawSpanId(random: Random): string {
  return drawId(random, 8)
}

function drawId(random: Random, bytes: number): string {
  for (;;) {
    const id = random.bytes(bytes).toString('hex')
    if (/[^0]/.test(id)) return id
  }
}

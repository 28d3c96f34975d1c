import { interruptibleSleep, NOTIFIED, type Clock } from '../clock.ts'
import type { Log } from '../log.ts'
import type { Span } from './tracer.ts'

/** The most spans that wait for their export. Later ones are dropped: tracing must never use up memory. */
export const SPANS_MAX = 4_096
const BATCH_MAX = 512
/** How long spans are gathered, in milliseconds. */
const GATHER_MS = 1_000
/** The pause after a failed export, in milliseconds. */
export const RETRY_MS = 5_000
/** How often a failing export is logged, in milliseconds. */
const LOG_MS = 60_000

/** `rejected`: the collector will never take these spans. */
export type ExportResult = 'taken' | 'rejected'

/** Exports spans in the background. Nothing waits for it but `close`. */
export type SpanExporter = {
  add(span: Span): void
  /** Exports what is left, for at most `limitMs`, and ends. */
  close(limitMs: number): Promise<void>
}

/** Creates an exporter. `send` exports a batch, and rejects if another try may succeed. */
export function makeSpanExporter(deps: {
  readonly send: (spans: readonly Span[], signal: AbortSignal) => Promise<ExportResult>
  readonly clock: Clock
  readonly log: Log
}): SpanExporter {
  const { send, clock, log } = deps
  const waiting: Span[] = []
  const ending = new AbortController()
  const stopped = new AbortController()
  let dropped = 0
  let loggedAtMs = Number.NEGATIVE_INFINITY
  let isDraining = false
  let draining: Promise<void> = Promise.resolve()

  const warn = (error: unknown): void => {
    if (clock.monotonicMs() - loggedAtMs < LOG_MS) return
    loggedAtMs = clock.monotonicMs()
    log.warn(
      { error, dropped },
      'traces could not be exported to OTEL_EXPORTER_OTLP_ENDPOINT; requests are not affected',
    )
  }
  /** Exports until nothing waits, or `stopped`. A batch that failed is tried again, unless the process is ending. */
  const drain = async (): Promise<void> => {
    isDraining = true
    await interruptibleSleep(clock, GATHER_MS, ending.signal)
    while (waiting.length > 0 && !stopped.signal.aborted) {
      const batch = waiting.slice(0, BATCH_MAX)
      try {
        const result = await send(batch, stopped.signal)
        waiting.splice(0, batch.length)
        if (result === 'taken') continue
        dropped += batch.length
        warn(new Error('the collector refused the spans'))
      } catch (error) {
        warn(error)
        if (ending.signal.aborted) break
        await interruptibleSleep(clock, RETRY_MS, ending.signal)
      }
    }
    isDraining = false
  }
  return {
    add(span) {
      if (waiting.length >= SPANS_MAX || ending.signal.aborted) {
        dropped += 1
        return
      }
      waiting.push(span)
      if (!isDraining) draining = drain()
    },
    async close(limitMs) {
      ending.abort(NOTIFIED)
      const timer = setTimeout(() => {
        stopped.abort(new Error('the process ends'))
      }, limitMs)
      await draining
      clearTimeout(timer)
    },
  }
}

import type { Config } from '../../config.ts'
import { proxyFor } from '../../domain/network/proxy-rule.ts'
import { systemClock } from '../../lib/clock.ts'
import { makeGuardedHttp } from '../../lib/outbound/guarded-http.ts'
import type { Log } from '../../lib/log.ts'
import { bufferedRandom, systemRandom } from '../../lib/random.ts'
import { renderOtlp } from '../../lib/tracing/otlp-json.ts'
import { makeSampler } from '../../lib/tracing/sampler.ts'
import { makeSpanExporter, type ExportResult } from '../../lib/tracing/span-exporter.ts'
import { makeTracer, type Span, type Tracer } from '../../lib/tracing/tracer.ts'
import { VERSION } from '../version.ts'

/** How long the end of the process waits for the last spans, in milliseconds. */
const CLOSE_LIMIT_MS = 2_000
const LIMITS = { replyMs: 10_000, idleMs: 5_000, totalMs: 10_000, bodyBytes: 65_536 }
/** The statuses after which OTLP/HTTP allows another try. */
const RETRYABLE: ReadonlySet<number> = new Set([429, 502, 503, 504])

export type Tracing = { readonly tracer: Tracer; close(): Promise<void> }

/** Opens the export of traces. Null if no collector is set: then nothing is recorded. */
export function openTracing(config: Config, { log, instance }: { log: Log; instance: string }): Tracing | null {
  const url = collectorOf(config)
  if (url === null || config.otelTracesSampler === 'always_off') return null
  const rule = { proxy: config.httpsProxy, direct: config.noProxy ?? [] }
  // The operator named the collector, so it may have any address.
  const http = makeGuardedHttp({ judge: () => 'named', proxyFor: (to) => proxyFor(rule, to) })
  const resource = {
    'service.name': 'sandyard',
    ...config.otelResourceAttributes,
    ...(config.otelServiceName === null ? {} : { 'service.name': config.otelServiceName }),
    'service.version': VERSION,
    'service.instance.id': instance,
  }
  const headers = { ...config.otlpHeaders, 'content-type': 'application/json' }
  const send = async (spans: readonly Span[], signal: AbortSignal): Promise<ExportResult> => {
    const body = Buffer.from(renderOtlp(spans, resource))
    const reply = await http.send({ url, method: 'POST', headers, body, limits: LIMITS, signal, linkedFrom: null })
    reply.discard()
    if (RETRYABLE.has(reply.status)) throw new Error(`the collector answered ${String(reply.status)}`)
    return reply.status >= 200 && reply.status <= 299 ? 'taken' : 'rejected'
  }
  const exporter = makeSpanExporter({ send, clock: systemClock, log })
  const sampler = makeSampler(config.otelTracesSampler, config.otelTracesSamplerArg)
  const onSpan = (span: Span): void => {
    exporter.add(span)
  }
  return {
    tracer: makeTracer({ random: bufferedRandom(systemRandom), sampler, onSpan }),
    close: () => exporter.close(CLOSE_LIMIT_MS),
  }
}

function collectorOf({ otlpEndpoint, otlpTracesEndpoint }: Config): URL | null {
  if (otlpTracesEndpoint !== null || otlpEndpoint === null) return otlpTracesEndpoint
  return new URL(`${otlpEndpoint.href.replace(/\/$/, '')}/v1/traces`)
}

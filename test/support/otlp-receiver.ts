import { createServer } from 'node:http'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'

/** A span as a collector got it. Times are in milliseconds. */
export type ReceivedSpan = {
  readonly traceId: string
  readonly spanId: string
  readonly parentSpanId: string | null
  readonly name: string
  readonly fromMs: number
  readonly untilMs: number
  readonly attributes: Readonly<Record<string, string>>
  readonly error: string | null
  readonly service: string
}

type Attributes = readonly { readonly key: string; readonly value: Readonly<Record<string, unknown>> }[]
type Payload = {
  readonly resourceSpans: readonly {
    readonly resource: { readonly attributes: Attributes }
    readonly scopeSpans: readonly { readonly spans: readonly SentSpan[] }[]
  }[]
}
type SentSpan = {
  readonly traceId: string
  readonly spanId: string
  readonly parentSpanId?: string
  readonly name: string
  readonly startTimeUnixNano: string
  readonly endTimeUnixNano: string
  readonly attributes: Attributes
  readonly status?: { readonly code: number; readonly message: string }
}

/** A collector of traces by OTLP/HTTP in JSON. */
export type OtlpReceiver = {
  readonly url: string
  readonly spans: readonly ReceivedSpan[]
  /** The headers of the requests, and their paths. */
  readonly requests: readonly { readonly path: string; readonly authorization: string | undefined }[]
} & AsyncDisposable

/** Starts a collector on loopback. */
export async function startOtlpReceiver(): Promise<OtlpReceiver> {
  const spans: ReceivedSpan[] = []
  const requests: OtlpReceiver['requests'][number][] = []
  const server = createServer((request, response) => {
    requests.push({ path: request.url ?? '', authorization: request.headers.authorization })
    void text(request).then((body) => {
      spans.push(...readSpans(JSON.parse(body) as Payload))
      response.end('{}')
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo // it listens on a port
  return {
    url: `http://127.0.0.1:${String(port)}`,
    spans,
    requests,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
}

function readSpans({ resourceSpans }: Payload): readonly ReceivedSpan[] {
  return resourceSpans.flatMap(({ resource, scopeSpans }) =>
    scopeSpans.flatMap((scope) =>
      scope.spans.map((span) => ({
        traceId: span.traceId,
        spanId: span.spanId,
        parentSpanId: span.parentSpanId ?? null,
        name: span.name,
        fromMs: Number(BigInt(span.startTimeUnixNano) / 1000n) / 1000,
        untilMs: Number(BigInt(span.endTimeUnixNano) / 1000n) / 1000,
        attributes: readAttributes(span.attributes),
        error: span.status?.message ?? null,
        service: readAttributes(resource.attributes)['service.name'] ?? '',
      })),
    ),
  )
}

function readAttributes(attributes: Attributes): Readonly<Record<string, string>> {
  return Object.fromEntries(attributes.map(({ key, value }) => [key, String(Object.values(value)[0])]))
}

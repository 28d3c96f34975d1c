import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Operation } from '../../contract/operation.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Tracer } from '../../lib/tracing/tracer.ts'

/** The operations that start sandboxes. */
const TRACED: ReadonlySet<string> = new Set(['create_sandbox', 'start_sandbox', 'start_sandbox_by_name'])

type Exchange = { readonly operation: Operation; readonly request: FastifyRequest; readonly reply: FastifyReply }

/**
 * Begins the span of a request that starts a sandbox. Returns it as the parent of the spans within it, or null if the
 * request is not traced.
 */
export type RequestTracer = (exchange: Exchange) => string | null

/** Creates the function that traces requests. It continues the client's trace if there is a valid `traceparent`. */
export function makeRequestTracer(tracer: Tracer, clock: Clock): RequestTracer {
  return ({ operation, request, reply }) => {
    if (!TRACED.has(operation.id)) return null
    const header = request.headers['traceparent']
    const span = tracer.beginTrace(typeof header === 'string' ? header : null)
    if (span === null) return null
    reply.raw.once('close', () => {
      const untilMs = clock.now().getTime()
      const { statusCode } = reply.raw
      span.end({
        name: `${operation.method} ${operation.path}`,
        kind: 'server',
        fromMs: untilMs - reply.elapsedTime,
        untilMs,
        attributes: {
          'http.request.method': operation.method,
          'http.route': operation.path,
          'http.response.status_code': statusCode,
          'sandyard.operation': operation.id,
          'sandyard.request.id': request.id,
        },
        error: statusCode >= 500 ? `status ${String(statusCode)}` : null,
      })
    })
    return span.traceParent
  }
}

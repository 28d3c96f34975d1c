import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { Registry } from 'prom-client'
import { renderDocumentText } from '../../contract/openapi.ts'
import { OPERATIONS } from '../../contract/operations.ts'
import { Problem } from '../../domain/problem.ts'
import { makeSingleFlight } from '../../lib/turns/single-flight.ts'
import { refusalOfMetrics } from '../requests/metrics-access.ts'
import { PEERS_ARE_CLIENTS, type ClientAddresses } from '../requests/client-address.ts'
import { JSON_TYPE } from '../requests/problem-reply.ts'
import { makeAddressThrottle } from '../requests/throttle-address.ts'
import { streamBuffers } from './stream-buffers.ts'

export type ServiceRouteDeps = {
  readonly metrics: Registry
  /** Reads metrics of other processes, in the text format. Their names differ from those of `metrics`. */
  readonly readMoreMetrics?: () => Promise<string>
  /** The bearer token for the metrics. Null or absent: only direct clients on the same machine get them. */
  readonly metricsKey?: string | null
  /** The reasons why the process can't serve requests, as readable texts. Empty if it can. */
  readonly unreadyReasons: () => Promise<readonly string[]>
  /** Finds the addresses of clients. Absent: each connection's peer is its client. */
  readonly clients?: ClientAddresses
}

/**
 * Adds the routes for operators: health, readiness, metrics, and the API document. They need no API key and show no data of
 * organizations. The metrics show how much work the installation has, so strangers don't get them.
 */
export function addServiceRoutes(app: FastifyInstance, deps: ServiceRouteDeps): void {
  const document = Buffer.from(renderDocumentText()) // rendered once for all replies
  // These requests need no key. Therefore each address waits its turn, and concurrent requests share one query of the database.
  const throttle = makeAddressThrottle(deps.clients ?? PEERS_ARE_CLIENTS)
  const checks = makeSingleFlight<readonly string[]>()
  const scrapes = makeSingleFlight<string>()
  const readMetrics = async (): Promise<string> =>
    (await Promise.all([deps.metrics.metrics(), deps.readMoreMetrics?.() ?? ''])).join('')
  app.get(OPERATIONS.get_health.path, (_request, reply) => reply.type(JSON_TYPE).send('{"status":"ok"}'))
  app.get(OPERATIONS.get_readiness.path, async (request, reply) => {
    const reasons = await throttle(request.raw, () => checks.join('readiness', () => deps.unreadyReasons()).result)
    if (reasons === null) return reply.hijack()
    if (reasons.length > 0)
      throw new Problem('unavailable', { message: `not ready: ${reasons.join('; ')}`, details: { reasons } })
    return reply.type(JSON_TYPE).send('{"status":"ready","reasons":[]}')
  })
  app.get(OPERATIONS.get_metrics.path, async (request, reply) => {
    requireMetricsAccess(request, deps.metricsKey ?? null)
    const text = await throttle(request.raw, () => scrapes.join('metrics', readMetrics).result)
    return text === null ? reply.hijack() : reply.type(deps.metrics.contentType).send(text)
  })
  app.get(OPERATIONS.get_document.path, async (request, reply) => {
    const isTheirTurn = await throttle(request.raw, () => Promise.resolve(true))
    if (isTheirTurn === null) return reply.hijack()
    return reply
      .type(JSON_TYPE)
      .header('content-length', document.length)
      .send(streamBuffers([document]))
  })
}

/** Throws `invalid_api_key` unless the request may read the metrics. */
function requireMetricsAccess(request: FastifyRequest, key: string | null): void {
  const message = refusalOfMetrics(request, key)
  if (message !== null) throw new Problem('invalid_api_key', { message })
}

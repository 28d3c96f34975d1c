import type { FastifyInstance } from 'fastify'
import type { Registry } from 'prom-client'
import { renderDocumentText } from '../../contract/openapi.ts'
import { OPERATIONS } from '../../contract/operations.ts'
import { Problem } from '../../domain/problem.ts'
import { makeSingleFlight } from '../../lib/single-flight.ts'
import { JSON_TYPE } from '../requests/problem-reply.ts'

export type ServiceRouteDeps = {
  readonly metrics: Registry
  /** The reasons why the process can't serve requests, as readable texts. Empty if it can. */
  readonly unreadyReasons: () => Promise<readonly string[]>
}

/**
 * Adds the routes for operators: health, readiness, metrics, and the API document. They need no key and show no data of
 * organizations.
 */
export function addServiceRoutes(app: FastifyInstance, deps: ServiceRouteDeps): void {
  const document = Buffer.from(renderDocumentText()) // all replies share these bytes
  // These requests need no key and have no rate limit. Therefore concurrent requests share one query of the database.
  const checks = makeSingleFlight<readonly string[]>()
  const scrapes = makeSingleFlight<string>()
  app.get(OPERATIONS.get_health.path, (_request, reply) => reply.type(JSON_TYPE).send('{"status":"ok"}'))
  app.get(OPERATIONS.get_readiness.path, async (_request, reply) => {
    const reasons = await checks.join('readiness', () => deps.unreadyReasons()).result
    if (reasons.length > 0)
      throw new Problem('unavailable', { message: `not ready: ${reasons.join('; ')}`, details: { reasons } })
    return reply.type(JSON_TYPE).send('{"status":"ready","reasons":[]}')
  })
  app.get(OPERATIONS.get_metrics.path, async (_request, reply) =>
    reply.type(deps.metrics.contentType).send(await scrapes.join('metrics', () => deps.metrics.metrics()).result),
  )
  app.get(OPERATIONS.get_document.path, (_request, reply) => reply.type(JSON_TYPE).send(document))
}

import type { FastifyInstance } from 'fastify'
import type { Registry } from 'prom-client'
import { renderDocumentText } from '../../contract/openapi.ts'
import { OPERATIONS } from '../../contract/operations.ts'
import { Problem } from '../../domain/problem.ts'
import { shareWork } from '../../lib/share-work.ts'
import { JSON_TYPE } from './problem-reply.ts'

export type ServiceRouteDeps = {
  readonly metrics: Registry
  /** What keeps the process from serving, in words; empty when it can. */
  readonly unreadyReasons: () => Promise<readonly string[]>
}

/** The routes for those who operate the service. They need no key and tell nothing of any organization. */
export function addServiceRoutes(app: FastifyInstance, deps: ServiceRouteDeps): void {
  const document = Buffer.from(renderDocumentText()) // bytes, so that many replies on their way share them
  // Who asks has no key and is not counted: however many ask, the database is asked once at a time.
  const isReady = shareWork(() => deps.unreadyReasons())
  const metrics = shareWork(() => deps.metrics.metrics())
  app.get(OPERATIONS.get_health.path, (_request, reply) => reply.type(JSON_TYPE).send('{"status":"ok"}'))
  app.get(OPERATIONS.get_readiness.path, async (_request, reply) => {
    const reasons = await isReady()
    if (reasons.length > 0)
      throw new Problem('unavailable', { message: `not ready: ${reasons.join('; ')}`, details: { reasons } })
    return reply.type(JSON_TYPE).send('{"status":"ready","reasons":[]}')
  })
  app.get(OPERATIONS.get_metrics.path, async (_request, reply) =>
    reply.type(deps.metrics.contentType).send(await metrics()),
  )
  app.get(OPERATIONS.get_document.path, (_request, reply) => reply.type(JSON_TYPE).send(document))
}

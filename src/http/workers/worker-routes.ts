import type { IncomingHttpHeaders } from 'node:http'
import type { FastifyInstance, FastifyPluginAsync, FastifyRequest } from 'fastify'
import type { WebSocket } from 'ws'
import { SyncInput } from '../../contract/workers/sync-input.ts'
import {
  STREAM_PURPOSE_HEADER,
  STAND_BY_HOLD_MS,
  STAND_BY_PATH,
  type StreamPurpose,
  type SyncRequest,
} from '../../contract/workers/worker-protocol.ts'
import type { ControlDeps } from '../../control/make-deps.ts'
import type { AuthenticationRateLimiter } from '../../control/requests/request-rate-limiter.ts'
import { holdSync } from '../../control/workers/hold-sync.ts'
import { renderAnswer } from '../../control/workers/render-answer.ts'
import type { Tickets } from '../../control/workers/sync-answer.ts'
import { makeSyncOrder } from '../../control/workers/sync-order.ts'
import { authenticateWorker } from '../../control/workers/worker-join.ts'
import { limitClaims, type AuthenticatedWorker } from '../../domain/workers/worker-bounds.ts'
import { asId, type OrgId, type RunId, type SandboxId, type VolumeId, type WorkerId } from '../../domain/ids.ts'
import { hashSecret } from '../../domain/orgs/api-key.ts'
import { Problem } from '../../domain/problem.ts'
import { refusalProblem } from '../../domain/refusal.ts'
import { interruptibleSleep } from '../../lib/clock.ts'
import { once } from '../../lib/turns/once.ts'
import { rateLimitAddress } from '../../lib/rate-limit-address.ts'
import type { Relay } from '../../relay/relay.ts'
import { senderOf, type Sender } from '../requests/authenticate-request.ts'
import { bearerCredentialIn } from '../requests/bearer-credential.ts'
import type { ClientAddresses } from '../requests/client-address.ts'
import { abortOnDisconnect } from '../requests/request-signals.ts'
import { refuseProtocol } from './join-route.ts'
import { JSON_TYPE } from '../requests/problem-reply.ts'
import { parseJsonBody } from '../requests/bodies/json-bodies.ts'
import { collectBody } from '../requests/bodies/collect-body.ts'
import { endWithText } from '../server/stream-buffers.ts'
import type { UpgradeRoute } from '../streams/upgrades.ts'
import { makeSchemaCompiler } from '../requests/schemas/schema-compiler.ts'

/** The dependencies for authenticating workers. Without `rates`, failed attempts are not counted. */
export type AuthenticationDeps = {
  readonly control: ControlDeps
  readonly clients: ClientAddresses
  readonly rates?: AuthenticationRateLimiter
}
export type WorkerRouteDeps = AuthenticationDeps & { readonly relay: Relay<StreamPurpose, WebSocket> }
export type SyncRouteDeps = AuthenticationDeps & {
  readonly tickets: Tickets
  /** The URLs of the live server processes. */
  readonly replicas: { readonly urls: readonly string[] }
}

/** The largest body of a sync, in bytes: about 100,000 runs. */
const SYNC_LIMIT_BYTES = 64 * 1024 * 1024

/** The largest body of a sync that is read before its sender is authenticated, in bytes. */
const STRANGER_LIMIT_BYTES = 16 * 1024

/**
 * The maximum number of workers whose credentials a server process caches. In a larger fleet, syncs of workers that are
 * not cached cost a lookup.
 */
const REMEMBERED_MAX = 100_000

/**
 * The route for worker syncs. A worker whose credential is cached needs no lookup: the statement that extends its lease
 * compares the credential. If that statement refuses the worker, the worker is looked up. The head of the reply is sent
 * as soon as the report is recorded, with a space, which JSON allows before a value. From then on the worker knows that
 * its lease was extended.
 */
export function makeSyncRoute(deps: SyncRouteDeps): FastifyPluginAsync {
  const { control, tickets, replicas } = deps
  const parse = makeSchemaCompiler()(SyncInput, 'body')
  const order = makeSyncOrder(control.uuids.next())
  const remembered = new Map<string, RememberedWorker>()
  return (app) => {
    acceptUnparsedBodies(app)
    const onRequest = async (request: FastifyRequest): Promise<void> => {
      // Most syncs are small. Their sender is authenticated only once, after the body has arrived.
      if (!isSmall(request.headers)) await authenticateSender(deps, senderOf(deps.clients, request.raw))
    }
    app.post('/worker/v1/sync', { bodyLimit: SYNC_LIMIT_BYTES, onRequest }, async (request, reply) => {
      const credentialSha256 = hashSecret(bearerCredentialIn(request.headers.authorization) ?? '')
      const key = credentialSha256.toString('base64')
      const authenticate = async (): Promise<RememberedWorker> => {
        remembered.delete(key)
        const found = { ...(await authenticateSender(deps, senderOf(deps.clients, request.raw))), loggedClaims: null }
        if (remembered.size >= REMEMBERED_MAX) remembered.clear()
        remembered.set(key, found)
        return found
      }
      const known = remembered.get(key)
      const worker = known ?? (await authenticate())
      const sender = { credentialSha256, authenticate: async () => (await authenticate()).id }
      const body = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0)
      const claimed = reportOf(parse(parseJsonBody(request, body)), worker.id)
      const report = { ...claimed, ...limitClaims(claimed, worker.bounds) }
      logRefusedClaims(control.log, worker, report.refused_claims)
      const onRecorded = once(() => {
        reply.hijack()
        reply.raw.writeHead(200, { 'x-request-id': request.id, 'content-type': JSON_TYPE })
        reply.raw.write(' ')
      })
      try {
        const answer = await order.run(report, abortOnDisconnect(reply.raw), (signal) =>
          holdSync({ ...control, tickets, onRecorded, ...(known === undefined ? {} : { sender }) }, report, signal),
        )
        onRecorded()
        endWithText(reply.raw, renderAnswer({ ...answer, replicas: replicas.urls }))
      } catch (error) {
        if (!reply.sent) throw error
        control.log.warn({ error }, 'could not answer a sync; the worker will retry')
        reply.raw.destroy()
      }
      return reply
    })
    app.addHook('preClose', () => {
      order.releaseAll(new Error('the server is closing'))
      return Promise.resolve()
    })
    return Promise.resolve()
  }
}

/** A worker that was authenticated before, and its refused claims that were logged last. */
type RememberedWorker = AuthenticatedWorker & { loggedClaims: string | null }

/** Logs refused claims when they change. A worker sends a report every few seconds. */
function logRefusedClaims(log: ControlDeps['log'], worker: RememberedWorker, refused_claims: string | null): void {
  if (refused_claims !== null && refused_claims !== worker.loggedClaims)
    log.warn({ worker_id: worker.id, refused_claims }, 'a worker claims more than its join token allows')
  worker.loggedClaims = refused_claims
}

/** Passes JSON bodies on as bytes. A sync is parsed after its sender is authenticated. */
function acceptUnparsedBodies(scope: FastifyInstance): void {
  scope.removeAllContentTypeParsers()
  scope.addContentTypeParser('application/json', (request, payload, done) => {
    collectBody(request, payload, (error, pieces) => (error === null ? done(null, Buffer.concat(pieces)) : done(error)))
  })
}

/**
 * The route for the stand-by requests of workers. A stand-by request is answered with a WebSocket when the control
 * plane needs a stream from its worker.
 */
export function makeStandByRoute(deps: WorkerRouteDeps): UpgradeRoute {
  const { control, relay } = deps
  return {
    path: STAND_BY_PATH,
    handle: async (upgrade) => {
      const { address, headers } = upgrade
      const worker = await authenticateSender(deps, { address, headers })
      const begun = new AbortController()
      const withdraw = relay.addStandby(worker.id, async (asked) => {
        begun.abort()
        try {
          const text = Buffer.from(JSON.stringify(asked)).toString('base64url')
          return await upgrade.accept({ [STREAM_PURPOSE_HEADER]: text })
        } catch (error) {
          control.log.debug({ error }, 'a stand-by connection of a worker was lost')
          return null
        }
      })
      await interruptibleSleep(control.clock, STAND_BY_HOLD_MS, upgrade.signal, begun.signal)
      withdraw()
      if (!begun.signal.aborted)
        throw new Problem('unavailable', { message: 'no stream was needed', retryAfterSeconds: 1 })
    },
  }
}

/** The route on which a worker dials a stream with a ticket. */
export function makeStreamRoute(deps: WorkerRouteDeps): UpgradeRoute {
  const { relay } = deps
  return {
    path: '/worker/v1/streams/{ticket}',
    handle: async (upgrade) => {
      const { address, headers } = upgrade
      const worker = await authenticateSender(deps, { address, headers })
      const ticket = upgrade.params['ticket'] ?? ''
      if (!relay.hasTicket(worker.id, ticket))
        throw new Problem('not_found', { message: 'the ticket has expired or is not for this worker' })
      const socket = await upgrade.accept()
      if (!relay.accept(worker.id, ticket, socket)) socket.terminate()
    },
  }
}

function isSmall({ authorization, 'content-length': length }: IncomingHttpHeaders): boolean {
  return authorization !== undefined && length !== undefined && Number(length) <= STRANGER_LIMIT_BYTES
}

/** The worker whose credential a request has. Throws `invalid_api_key`. */
export async function authenticateSender(
  { control, rates }: AuthenticationDeps,
  sender: Pick<Sender, 'headers' | 'address'>,
): Promise<AuthenticatedWorker> {
  const credential = bearerCredentialIn(sender.headers.authorization)
  const address = rateLimitAddress(sender.address)
  const onStranger = (): void => rates?.checkFailedAuthentications(address)
  const worker = credential === null ? null : await authenticateWorker(control, credential, onStranger)
  if (worker !== null) return worker
  rates?.countFailedAuthentication(address)
  throw new Problem('invalid_api_key')
}

type ParsedSync = Omit<SyncRequest, 'worker_id' | 'observed_runs' | 'stored_sandboxes' | 'volumes'> & {
  readonly worker_id: string
  readonly observed_runs: readonly (Omit<SyncRequest['observed_runs'][number], 'run_id' | 'sandbox_id'> & {
    readonly run_id: string
    readonly sandbox_id: string
  })[]
  readonly stored_sandboxes: readonly string[]
  readonly volumes:
    readonly { readonly org_id: string; readonly volume_id: string; readonly used_bytes: number }[] | null
}

function reportOf(parsed: ParsedSync, worker: WorkerId): SyncRequest {
  refuseProtocol(parsed.protocol)
  if (parsed.worker_id !== worker) {
    throw refusalProblem({
      code: 'invalid_request',
      field: 'worker_id',
      seen: parsed.worker_id,
      accepted: 'the id that the credential belongs to',
    })
  }
  return {
    ...parsed,
    worker_id: worker,
    observed_runs: parsed.observed_runs.map((run) => ({
      ...run,
      run_id: asId<RunId>(run.run_id),
      sandbox_id: asId<SandboxId>(run.sandbox_id),
    })),
    stored_sandboxes: parsed.stored_sandboxes.map((id) => asId<SandboxId>(id)),
    volumes:
      parsed.volumes?.map(({ org_id, volume_id, used_bytes }) => ({
        org_id: asId<OrgId>(org_id),
        volume_id: asId<VolumeId>(volume_id),
        used_bytes,
      })) ?? null,
  }
}

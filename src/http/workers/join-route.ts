import type { FastifyPluginAsync } from 'fastify'
import { JoinInput } from '../../contract/workers/join-input.ts'
import { JOIN_PATH, WORKER_PROTOCOL_VERSION, type JoinAnswer } from '../../contract/workers/worker-protocol.ts'
import { joinWorker } from '../../control/workers/worker-join.ts'
import type { AuthenticationRateLimiter } from '../../control/requests/request-rate-limiter.ts'
import { Problem } from '../../domain/problem.ts'
import { refusalProblem } from '../../domain/refusal.ts'
import { rateLimitAddress } from '../../lib/rate-limit-address.ts'
import type { ClientAddresses } from '../requests/client-address.ts'
import { makeSchemaCompiler } from '../requests/schemas/schema-compiler.ts'

/** The largest body of a join request, in bytes. */
const JOIN_LIMIT_BYTES = 16 * 1024

/**
 * The route on which a machine becomes a worker. It needs only a join token. An address with too many refused tokens
 * gets `rate_limited` without a lookup of its token.
 */
export function makeJoinRoute(
  control: Parameters<typeof joinWorker>[0],
  { clients, rates }: { readonly clients: ClientAddresses; readonly rates?: AuthenticationRateLimiter },
): FastifyPluginAsync {
  const parse = makeSchemaCompiler()(JoinInput, 'body')
  return (app) => {
    app.post(JOIN_PATH, { bodyLimit: JOIN_LIMIT_BYTES }, async (request): Promise<JoinAnswer> => {
      const { protocol, token, credential_sha256, name, fallback_name } = parse(request.body)
      refuseProtocol(protocol)
      const credentialSha256 = Buffer.from(credential_sha256, 'hex')
      const address = rateLimitAddress(clients.of(request.raw))
      rates?.checkFailedAuthentications(address)
      try {
        return await joinWorker(control, { token, credentialSha256, name, fallbackName: fallback_name })
      } catch (error) {
        if (error instanceof Problem && error.code === 'invalid_join_token') rates?.countFailedAuthentication(address)
        throw error
      }
    })
    return Promise.resolve()
  }
}

/** Throws `invalid_request` if the worker's release uses a different protocol version. */
export function refuseProtocol(protocol: number): void {
  if (protocol === WORKER_PROTOCOL_VERSION) return
  const accepted = `version ${String(WORKER_PROTOCOL_VERSION)}: give worker and control plane the same release`
  throw refusalProblem({ code: 'invalid_request', field: 'protocol', seen: String(protocol), accepted })
}

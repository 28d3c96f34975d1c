import { JOIN_PATH, type JoinAnswer, type JoinRequest } from '../../contract/workers/worker-protocol.ts'
import { pinOfJoinToken } from '../../domain/orgs/api-key.ts'
import { parseProblem } from './control-plane.ts'
import { makePinnedTls, PinMismatch } from './pinned-tls.ts'

/** The control plane refuses this machine as a worker. Retrying does not help. */
export class JoinRefused extends Error {}

const JOIN_LIMIT_MS = 15_000
/**
 * HTTP 4xx statuses of a server that is overloaded or not ready. They don't refuse the machine, so a retry may succeed.
 */
const PASSING_STATUSES: readonly number[] = [408, 425, 429]

/**
 * Sends one request to join. May be repeated with the same request. Rejects with `JoinRefused`, or with another error if a
 * retry may succeed. If the token pins a key, only a server with that key gets the token.
 */
export async function joinOnce(url: string, request: JoinRequest, signal: AbortSignal): Promise<JoinAnswer> {
  const response = await send(new URL(JOIN_PATH, url), pinOfJoinToken(request.token), {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(request),
    signal: AbortSignal.any([signal, AbortSignal.timeout(JOIN_LIMIT_MS)]),
  })
  const text = await response.text()
  if (response.ok) return JSON.parse(text) as JoinAnswer // the control plane is the same program with the same protocol version
  const { code, message } = parseProblem(text)
  if (code === null && response.status === 404)
    throw new JoinRefused(`${url} is not a Sandyard control plane, or has an older release`)
  const isRefusal = response.status < 500 && !PASSING_STATUSES.includes(response.status)
  if (isRefusal) throw new JoinRefused(`the control plane refuses this worker: ${message}`)
  throw new Error(`the control plane answered ${String(response.status)}: ${message}`)
}

type Sent = Parameters<ReturnType<typeof makePinnedTls>['send']>[1]

async function send(url: URL, pin: string | null, sent: Sent): Promise<Response> {
  if (pin === null || url.protocol !== 'https:') return fetch(url, { ...sent, redirect: 'error' }) // only the server at `url` may get the token
  try {
    return await makePinnedTls(() => pin).send(url, sent)
  } catch (error) {
    throw error instanceof PinMismatch ? new JoinRefused(error.message, { cause: error }) : error
  }
}

import { JOIN_PATH, type JoinAnswer, type JoinRequest } from '../../contract/workers/worker-protocol.ts'
import { parseProblem } from './control-plane.ts'

/** The control plane refuses this machine as a worker. Retrying does not help. */
export class JoinRefused extends Error {}

const JOIN_LIMIT_MS = 15_000
/**
 * HTTP 4xx statuses of a server that is overloaded or not ready. They don't refuse the machine, so a retry may succeed.
 */
const PASSING_STATUSES: readonly number[] = [408, 425, 429]

/**
 * Sends one request to join. May be repeated with the same request. Rejects with `JoinRefused`, or with another error if a
 * retry may succeed.
 */
export async function joinOnce(url: string, request: JoinRequest, signal: AbortSignal): Promise<JoinAnswer> {
  const response = await fetch(new URL(JOIN_PATH, url), {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(request),
    redirect: 'error', // only the server at `url` may get the token
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

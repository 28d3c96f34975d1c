import { JOIN_PATH, type JoinAnswer, type JoinRequest } from '../../contract/workers/worker-protocol.ts'
import { parseProblem } from './control-plane.ts'

/** The control plane will not have this machine as a worker; asking again changes nothing. */
export class JoinRefused extends Error {}

const JOIN_LIMIT_MS = 15_000
/** These say that it is overloaded or not ready, and not no. */
const PASSING_STATUSES: readonly number[] = [408, 425, 429]

/** Asks once to join; may be repeated with the same request. Rejects with `JoinRefused`, or with what else went wrong. */
export async function joinOnce(url: string, request: JoinRequest, signal: AbortSignal): Promise<JoinAnswer> {
  const response = await fetch(new URL(JOIN_PATH, url), {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(request),
    redirect: 'error', // the token is for the one who was named
    signal: AbortSignal.any([signal, AbortSignal.timeout(JOIN_LIMIT_MS)]),
  })
  const text = await response.text()
  if (response.ok) return JSON.parse(text) as JoinAnswer // the control plane is this program too, of the same protocol version
  const { code, message } = parseProblem(text)
  if (code === null && response.status === 404)
    throw new JoinRefused(`${url} is no control plane of Sandyard, or one of an older release`)
  const isRefusal = response.status < 500 && !PASSING_STATUSES.includes(response.status)
  if (isRefusal) throw new JoinRefused(`the control plane refuses this worker: ${message}`)
  throw new Error(`the control plane answered ${String(response.status)}: ${message}`)
}

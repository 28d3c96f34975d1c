import { hostname } from 'node:os'
import { WORKER_PROTOCOL_VERSION } from '../../contract/workers/worker-protocol.ts'
import { hashSecret, pinOfJoinToken } from '../../domain/orgs/api-key.ts'
import { interruptibleSleep, systemClock } from '../../lib/clock.ts'
import { systemRandom } from '../../lib/random.ts'
import { joinOnce, JoinRefused } from '../../worker/agent/join.ts'
import { printStatus } from '../print-status.ts'
import { readIdentity, writeIdentity, type JoinedIdentity } from './worker-identity.ts'

export type JoinOptions = { readonly url: string; readonly token: string; readonly name: string | null }

/** The pause after a failed attempt to join. It doubles each time, up to the maximum. */
const RETRY_MIN_MS = 1_000
const RETRY_MAX_MS = 15_000

/**
 * Joins the control plane as a worker and stores the identity in the data folder. Retries until the control plane
 * answers, and prints each failure. Resolves with null when the signal is aborted first. Rejects with `JoinRefused`.
 */
export async function joinFleet(
  dataDir: string,
  wish: JoinOptions,
  signal: AbortSignal,
): Promise<JoinedIdentity | null> {
  const { url, token, name } = wish
  const credential = (await readIdentity(dataDir))?.credential ?? systemRandom.bytes(32).toString('base64url')
  // Store the credential before sending its hash, so that a retry after a lost answer sends the same one.
  await writeIdentity(dataDir, { credential, joined: null })
  const request = {
    protocol: WORKER_PROTOCOL_VERSION,
    token,
    credential_sha256: hashSecret(credential).toString('hex'),
    name,
    fallback_name: hostname(),
  }
  for (let pauseMs = RETRY_MIN_MS; !signal.aborted; pauseMs = Math.min(2 * pauseMs, RETRY_MAX_MS)) {
    try {
      const identity = {
        credential,
        joined: { url, pin: pinOfJoinToken(token), ...(await joinOnce(url, request, signal)) },
      }
      await writeIdentity(dataDir, identity)
      return identity
    } catch (error) {
      if (error instanceof JoinRefused) throw error
      if (signal.aborted) return null
      printStatus(`${url} can't be joined: ${describeError(error)}; retrying in ${String(pauseMs / 1000)} s`)
      await interruptibleSleep(systemClock, pauseMs, signal)
    }
  }
  return null
}

/**
 * Formats an error as one line for the terminal. The text includes the error's causes, because a `fetch` error has its
 * reason only in its cause.
 */
export function describeError(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.cause instanceof Error ? `${error.message}: ${error.cause.message}` : error.message
}

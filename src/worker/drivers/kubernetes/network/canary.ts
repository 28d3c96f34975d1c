/**
 * The proof that a cluster enforces NetworkPolicies, which its API doesn't tell. A connection from one Pod to another is accepted while
 * policies allow it, isn't while one denies it at either end, and is accepted again afterwards. A broken network is thus never taken for an
 * enforcer, and neither is a cluster where other policies deny the connection.
 */
import { ApiError } from '../../../kubernetes/api-error.ts'
import { applyObject } from '../../../kubernetes/objects.ts'
import { policiesPath } from '../namespaces/base-policies.ts'
import { CANARY_PARTS, canaryPolicyName, makeCanaryPolicy, type CanaryPart } from './canary-objects.ts'
import { CanaryFailure, EXEC_MS, reach, removeCanaries, startPods, type CanaryDeps } from './canary-pods.ts'

/**
 * What a canary showed. `enforced`: policies hold in both directions. `open`: a connection was accepted that a policy denied. `unknown`: the
 * canary could not be completed, which says nothing about the cluster. `seen` says why, for people.
 */
export type CanaryVerdict = { readonly kind: 'enforced' } | { readonly kind: 'open' | 'unknown'; readonly seen: string }

/** How many connections in a row must fail until a denial counts as enforced. One may be lost by chance. */
export const CONFIRMATIONS = 3
const CLEAN_UP_MS = 10_000
export const DIRECTIONS: Readonly<Record<CanaryPart, string>> = { server: 'ingress', client: 'egress' }
/** The first connection, and both policies closed and opened again. */
const STEPS = 5

/** Runs a canary, which is `attempt`, and removes what it and those before it left. Rejects only with the signal's reason. */
export async function runCanary(
  deps: CanaryDeps,
  signal: AbortSignal,
  attempt: (deps: CanaryDeps, signal: AbortSignal) => Promise<CanaryVerdict>,
): Promise<CanaryVerdict> {
  const { startMs, changeMs } = deps.limits
  const limit = AbortSignal.timeout(startMs + STEPS * (changeMs + EXEC_MS))
  try {
    await removeCanaries(deps, AbortSignal.any([signal, limit]))
    return await attempt(deps, AbortSignal.any([signal, limit]))
  } catch (error) {
    signal.throwIfAborted()
    if (limit.aborted) return { kind: 'unknown', seen: 'it did not end in time' }
    if (error instanceof CanaryFailure) return { kind: 'unknown', seen: error.message }
    if (error instanceof ApiError) return { kind: 'unknown', seen: `the API server refuses it: ${error.message}` }
    throw error
  } finally {
    await removeCanaries(deps, AbortSignal.timeout(CLEAN_UP_MS)).catch((error: unknown) => {
      deps.log.warn({ error }, 'a canary could not be removed; the next one tries again')
    })
  }
}

/** Tries NetworkPolicies. The attempt of a canary. */
export async function tryPolicies(deps: CanaryDeps, signal: AbortSignal): Promise<CanaryVerdict> {
  const { changeMs, lookMs } = deps.limits
  const set = (part: CanaryPart, state: 'open' | 'closed'): Promise<void> => setPolicy(deps, { part, state }, signal)
  for (const part of CANARY_PARTS) await set(part, 'open')
  const { client, server } = await startPods(deps, signal)
  const becomes = async (wanted: 'reached' | 'closed'): Promise<boolean> => {
    const startedMs = deps.clock.monotonicMs()
    let inARow = 0
    do {
      inARow = (await reach(deps, { pod: client.pod, address: server.address }, signal)) === wanted ? inARow + 1 : 0
      if (inARow >= (wanted === 'closed' ? CONFIRMATIONS : 1)) return true
      await deps.clock.sleep(lookMs, signal)
    } while (deps.clock.monotonicMs() - startedMs < changeMs || inARow > 0)
    return false
  }
  const seconds = String(changeMs / 1_000)
  if (!(await becomes('reached')))
    throw new CanaryFailure(
      `of two Pods between which policies allow everything, one did not reach the other within ${seconds} s`,
    )
  for (const part of CANARY_PARTS) {
    await set(part, 'closed')
    if (!(await becomes('closed')))
      return {
        kind: 'open',
        seen: `a connection that a NetworkPolicy denies (${DIRECTIONS[part]}) was still accepted after ${seconds} s`,
      }
    await set(part, 'open')
    if (!(await becomes('reached')))
      throw new CanaryFailure(
        `a connection stayed closed for ${seconds} s after its NetworkPolicy (${DIRECTIONS[part]}) allowed it`,
      )
  }
  return { kind: 'enforced' }
}

/** Lets the policy of a part of a canary allow or deny everything. */
export async function setPolicy(
  deps: CanaryDeps,
  { part, state }: { readonly part: CanaryPart; readonly state: 'open' | 'closed' },
  signal: AbortSignal,
): Promise<void> {
  const object = makeCanaryPolicy(deps, part, state)
  await applyObject(deps, `${policiesPath(deps.namespace)}/${canaryPolicyName(deps.owner, part)}`, { object, signal })
}

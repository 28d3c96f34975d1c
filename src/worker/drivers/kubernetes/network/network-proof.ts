import type { Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import { repeat } from '../../../../lib/repeat.ts'
import type { CanaryVerdict } from './canary.ts'
import { readStoredProof, storeProof } from './stored-proof.ts'

/** Whether the cluster is proved to enforce NetworkPolicies. */
export type NetworkProof = {
  /** Changes when a later canary sees the opposite. */
  readonly isProved: boolean
  close(): Promise<void>
}

type NetworkProofInput = {
  /** The driver's folder. It remembers what was found. */
  readonly dir: string
  /** The namespace of the canary, for messages. */
  readonly namespace: string
  readonly runCanary: (signal: AbortSignal) => Promise<CanaryVerdict>
  readonly clock: Clock
  readonly log: Log
}

/** How often the proof is repeated, in milliseconds. A cluster's network plugin changes seldom. */
const REPEAT_MS = 3_600_000
/** How soon it is repeated after a canary that could not be completed, or that saw policies without effect. */
const RETRY_MS = 300_000

/**
 * Proves by a canary that the cluster enforces NetworkPolicies, and again each hour. A canary that can't be completed, for example because
 * the quota is full, leaves an earlier proof of the same data folder as it is. Rejects in words if the cluster enforces none, or if nothing
 * was ever proved.
 */
export async function openNetworkProof(input: NetworkProofInput): Promise<NetworkProof> {
  const { dir, namespace, runCanary, clock, log } = input
  const closing = new AbortController()
  let isProved = false
  let dueMs = 0

  const look = async (): Promise<CanaryVerdict> => {
    const verdict = await runCanary(closing.signal)
    dueMs = clock.monotonicMs() + (verdict.kind === 'enforced' ? REPEAT_MS : RETRY_MS)
    await storeProof(dir, verdict, clock.now())
    return verdict
  }
  const first = await look()
  const earlier = await readStoredProof(dir)
  if (first.kind !== 'enforced' && earlier?.kind !== 'enforced')
    throw new Error(`${describeFailure(first, namespace)}. ${ADVICE}`)
  if (first.kind === 'unknown')
    log.warn(
      { seen: first.seen, provedAt: earlier?.at },
      'NetworkPolicies could not be tried now; an earlier proof counts',
    )
  isProved = true

  const lookAgain = async (): Promise<void> => {
    if (clock.monotonicMs() < dueMs) return
    const verdict = await look()
    if (verdict.kind === 'unknown') log.warn({ seen: verdict.seen }, 'NetworkPolicies could not be tried')
    else if (verdict.kind === 'open')
      log.error(
        { seen: verdict.seen },
        'the cluster no longer enforces NetworkPolicies: running sandboxes may reach anything, and none is started until it does again',
      )
    if (verdict.kind !== 'unknown') isProved = verdict.kind === 'enforced'
  }
  const repeating = repeat(lookAgain, {
    pauseMs: RETRY_MS,
    clock,
    onFailure: (error) => {
      if (!closing.signal.aborted) log.warn({ err: error }, 'NetworkPolicies could not be tried')
    },
  })
  return {
    get isProved() {
      return isProved
    },
    async close() {
      closing.abort(new Error('the driver is closed'))
      await repeating.close()
    },
  }
}

const ADVICE =
  'Use a network plugin that enforces NetworkPolicies. Or set SANDYARD_KUBERNETES_NETWORK=cluster: sandboxes then reach what the cluster lets them, and requests with a network policy are refused'

function describeFailure(verdict: Exclude<CanaryVerdict, { readonly kind: 'enforced' }>, namespace: string): string {
  const tried = `two Pods and two NetworkPolicies in namespace ${namespace}`
  return verdict.kind === 'open'
    ? `the cluster does not enforce NetworkPolicies. Tried with ${tried}: ${verdict.seen}`
    : `whether the cluster enforces NetworkPolicies is unknown. Tried with ${tried}: ${verdict.seen}`
}

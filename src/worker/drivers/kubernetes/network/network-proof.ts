import type { Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import { repeat } from '../../../../lib/turns/repeat.ts'
import type { CanaryVerdict } from './canary.ts'
import { readStoredProof, storeProof, type ProvedMode } from './stored-proof.ts'

/** Whether it is proved that the cluster enforces what closes the network of sandboxes. */
export type NetworkProof = {
  /** Changes when a later canary sees the opposite. */
  readonly isProved: boolean
  close(): Promise<void>
}

type NetworkProofInput = {
  /** The driver's folder. It remembers what was found. */
  readonly dir: string
  /** What is proved. */
  readonly network: ProvedMode
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

type Texts = {
  /** What a canary tries, in logs. */
  readonly tried: string
  readonly open: string
  readonly objects: string
  readonly advice: string
}
const OF_THE_CLUSTER =
  'set SANDYARD_KUBERNETES_NETWORK=cluster: sandboxes then reach what the cluster lets them, and requests with a network policy are refused'
const TEXTS: Readonly<Record<ProvedMode, Texts>> = {
  prove: {
    tried: 'NetworkPolicies',
    open: 'enforce NetworkPolicies',
    objects: 'two Pods and two NetworkPolicies',
    advice: `Use a network plugin that enforces NetworkPolicies. Or ${OF_THE_CLUSTER}`,
  },
  rules: {
    tried: 'the rules of Pods',
    open: 'enforce the rules of Pods',
    objects: 'two Pods, one of which loads packet rules',
    advice: `The kernel of each node needs nf_tables with connection tracking, and the helper image nft. Or ${OF_THE_CLUSTER}`,
  },
}

/**
 * Proves by a canary that the cluster enforces NetworkPolicies, or the rules of Pods, and again each hour. A canary
 * that can't be completed, for example because the quota is full, leaves an earlier proof of the same data folder as it
 * is. Rejects in words if the cluster doesn't, or if nothing was ever proved.
 */
export async function openNetworkProof(input: NetworkProofInput): Promise<NetworkProof> {
  const { network, namespace, runCanary, clock, log } = input
  const texts = TEXTS[network]
  const { tried } = texts
  const closing = new AbortController()
  let isProved = false
  let dueMs = 0

  const look = async (): Promise<CanaryVerdict> => {
    const verdict = await runCanary(closing.signal)
    dueMs = clock.monotonicMs() + (verdict.kind === 'enforced' ? REPEAT_MS : RETRY_MS)
    await storeProof(input, verdict, clock.now())
    return verdict
  }
  const first = await look()
  const earlier = await readStoredProof(input)
  if (first.kind !== 'enforced' && earlier?.kind !== 'enforced')
    throw new Error(`${describeFailure(first, texts, namespace)}. ${texts.advice}`)
  if (first.kind === 'unknown')
    log.warn({ seen: first.seen, provedAt: earlier?.at }, `${tried} could not be tried now; an earlier proof counts`)
  isProved = true

  const lookAgain = async (): Promise<void> => {
    if (clock.monotonicMs() < dueMs) return
    const verdict = await look()
    if (verdict.kind === 'unknown') log.warn({ seen: verdict.seen }, `${tried} could not be tried`)
    else if (verdict.kind === 'open')
      log.error(
        { seen: verdict.seen },
        `the cluster does not ${texts.open} any more: running sandboxes may reach anything, and none is started until it does again`,
      )
    if (verdict.kind !== 'unknown') isProved = verdict.kind === 'enforced'
  }
  const repeating = repeat(lookAgain, {
    pauseMs: RETRY_MS,
    clock,
    onFailure: (error) => {
      if (!closing.signal.aborted) log.warn({ error }, `${tried} could not be tried`)
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

function describeFailure(
  verdict: Exclude<CanaryVerdict, { readonly kind: 'enforced' }>,
  { open, objects, tried: what }: Texts,
  namespace: string,
): string {
  const tried = `${objects} in namespace ${namespace}`
  return verdict.kind === 'open'
    ? `the cluster does not ${open}. Tried with ${tried}: ${verdict.seen}`
    : `whether the cluster enforces ${what} is unknown. Tried with ${tried}: ${verdict.seen}`
}

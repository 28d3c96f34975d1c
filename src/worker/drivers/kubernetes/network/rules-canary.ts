/**
 * The proof that the rules of a Pod hold on a node of the cluster, whose kernel may have no packet filter. The client
 * loads rules that open one port to it and nothing from outside. Both Pods are shown to work and to listen where the
 * rules deny, so a broken network counts for nothing.
 */
import { cidr } from '../../../../domain/cidr.ts'
import type { PacketRule } from '../../../../domain/network/network-policy.ts'
import { CANARY_PARTS, CANARY_PORT, CLOSED_PORT, type CanaryPart } from './canary-objects.ts'
import { CanaryFailure, reach, startPods, type CanaryDeps } from './canary-pods.ts'
import { CONFIRMATIONS, DIRECTIONS, setPolicy, type CanaryVerdict } from './canary.ts'
import { podRules } from './pod-rules.ts'

const EVERYTHING = { within: [cidr('0.0.0.0/0')], except: [] }
const OPEN_PORT: PacketRule = {
  action: 'allow',
  peer: EVERYTHING,
  protocols: ['tcp'],
  ports: [{ start: CANARY_PORT, end: CANARY_PORT }],
}
const MANY = 64
/** The limits show that the node can count connections. */
export const CANARY_RULES = podRules([OPEN_PORT], {
  limits: { max_connections: MANY, max_udp_connections: MANY },
  bound: { connections: MANY, newPerSecond: MANY },
})

type Connection = { readonly from: CanaryPart; readonly to: CanaryPart; readonly port: number }
/** A Pod reaches itself whatever its rules say, so the last two show only that it listens. */
const ALLOWED: readonly Connection[] = [
  { from: 'client', to: 'server', port: CANARY_PORT },
  { from: 'server', to: 'server', port: CLOSED_PORT },
  { from: 'client', to: 'client', port: CANARY_PORT },
]
/** What the rules of the client deny: that it connects, and that others connect to it. */
const DENIED: readonly Connection[] = [
  { from: 'client', to: 'server', port: CLOSED_PORT },
  { from: 'server', to: 'client', port: CANARY_PORT },
]

/** Tries the rules of a Pod. The attempt of a canary. */
export async function tryRules(deps: CanaryDeps, signal: AbortSignal): Promise<CanaryVerdict> {
  const { changeMs, lookMs } = deps.limits
  for (const part of CANARY_PARTS) await setPolicy(deps, { part, state: 'open' }, signal)
  const pods = await startPods(deps, signal, CANARY_RULES)
  const isReached = async ({ from, to, port }: Connection): Promise<boolean> =>
    (await reach(deps, { pod: pods[from].pod, address: pods[to].address, port }, signal)) === 'reached'
  const requireReached = async (one: Connection): Promise<void> => {
    const startedMs = deps.clock.monotonicMs()
    while (!(await isReached(one))) {
      if (deps.clock.monotonicMs() - startedMs > changeMs)
        throw new CanaryFailure(
          `the Pod ${one.from} did not reach port ${String(one.port)} of the Pod ${one.to}, which nothing denies, within ${String(changeMs / 1_000)} s`,
        )
      await deps.clock.sleep(lookMs, signal)
    }
  }
  for (const one of ALLOWED) await requireReached(one)
  for (const one of DENIED)
    for (let attempt = 0; attempt < CONFIRMATIONS; attempt += 1)
      if (await isReached(one))
        return { kind: 'open', seen: `a connection that the rules deny (${DIRECTIONS[one.from]}) was accepted` }
  for (const one of ALLOWED) await requireReached(one)
  return { kind: 'enforced' }
}

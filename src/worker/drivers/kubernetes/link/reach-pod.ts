import { interruptibleSleep, type Clock } from '../../../../lib/clock.ts'
import { joinSignals } from '../../../../lib/join-signals.ts'
import { AgentRefusal, type AgentLink } from './agent-link.ts'
import type { AgentLinks } from './agent-links.ts'
import { containerStatus, SANDBOX_CONTAINER, type OrgPod, type Pod } from '../pod.ts'
import type { Pods } from '../pods.ts'
import type { StartAttempts, StartPace } from './start-pace.ts'

type ReachDeps = {
  readonly pods: Pods
  readonly links: Pick<AgentLinks, 'of'>
  readonly pace: StartPace
  /** The container with the agent. Default: the sandbox's. */
  readonly container?: string
  readonly clock: Clock
}
type Reaching = {
  /** Looks at each state of the Pod. Throws if it can't start; true if it is over, and needs not be reached. */
  readonly judge: (pod: Pod | undefined) => boolean
  readonly signal: AbortSignal
}

/** The pause between attempts to reach a container that runs. */
const RUNNING_PAUSE_MS = 100

/**
 * Waits until the agent in a Pod answers, or the Pod is over. Resolves with the connection to the agent, or null. The
 * Pod may end at any time, and the connection with it. Rejects with what `judge` throws, with `AgentRefusal`, or with
 * the signal's reason.
 */
export async function reachPod(
  { pods, links, pace, container = SANDBOX_CONTAINER, clock }: ReachDeps,
  target: OrgPod,
  { judge, signal }: Reaching,
): Promise<AgentLink | null> {
  let attempts: StartAttempts | null = null
  let dueMs = Infinity
  let hasTriedRunning = false
  for (;;) {
    signal.throwIfAborted()
    const pod = pods.get(target.name)
    if (judge(pod)) return null
    if (attempts === null && pod !== undefined && hasNode(pod)) {
      attempts = pace.begin()
      dueMs = clock.monotonicMs() + attempts.nextPauseMs()
    }
    const isRunning = pod !== undefined && containerStatus(pod, container)?.state?.running !== undefined
    if (attempts !== null && (clock.monotonicMs() >= dueMs || (isRunning && !hasTriedRunning))) {
      hasTriedRunning = isRunning
      attempts.began()
      const link = await links.of(target, signal).catch(nullUnlessRefused)
      if (link !== null) {
        attempts.reached()
        return link
      }
      const pauseMs = attempts.nextPauseMs()
      dueMs = clock.monotonicMs() + (isRunning ? Math.min(pauseMs, RUNNING_PAUSE_MS) : pauseMs)
    } else await changeOrTime(target.name, Math.max(0, dueMs - clock.monotonicMs()), { pods, clock, signal })
  }
}

/** A Pod that starts can't be reached yet. An agent that refuses will always do so. */
function nullUnlessRefused(error: unknown): null {
  if (error instanceof AgentRefusal) throw error
  return null
}

/** Whether the sandbox's container may run already: the Pod has a node. */
function hasNode({ spec, status }: Pod): boolean {
  return spec?.nodeName !== undefined || status?.phase === 'Running'
}

/** Resolves at the next change of a Pod, or after a time, or when the signal aborts. */
async function changeOrTime(
  name: string,
  ms: number,
  { pods, clock, signal }: { readonly pods: Pods; readonly clock: Clock; readonly signal: AbortSignal },
): Promise<void> {
  const over = new AbortController()
  using either = joinSignals(signal, over.signal)
  const changed = pods.changeOf(name, either.signal).catch(() => undefined)
  await (ms === Infinity ? changed : Promise.race([changed, interruptibleSleep(clock, ms, either.signal)]))
  over.abort()
}

import type { Caller } from '../domain/caller.ts'
import { Problem } from '../domain/problem.ts'
import type { Sandbox } from '../domain/sandbox.ts'
import { interruptibleSleep } from '../lib/clock.ts'
import type { ControlDeps } from './deps.ts'

/** How often a waiter looks again without being woken: a lost wake-up costs this much, in milliseconds. */
const LOOK_AGAIN_MS = 1_000

type WaitDeps = Pick<ControlDeps, 'clock' | 'wake' | 'waits' | 'readSandbox'>

/** Takes a place among the waiting, before anything is admitted. Throws `rate_limited` when there is none. */
export function takeWait(deps: Pick<ControlDeps, 'waits'>): () => void {
  const giveBack = deps.waits.take()
  if (giveBack === null) {
    throw new Problem('rate_limited', {
      retryAfterSeconds: 1,
      details: {
        reason: 'readiness wait capacity exhausted',
        seen: deps.waits.taken,
        accepted: 'the same request without wait_for',
      },
    })
  }
  return giveBack
}

/**
 * Waits until a sandbox that was admitted to start is no longer `starting`, or `waitMs` are over, or the client left;
 * answers it as it is then.
 */
export async function waitWhileStarting(
  deps: WaitDeps,
  caller: Caller,
  sandbox: Sandbox,
  options: { readonly waitMs: number; readonly signal: AbortSignal },
): Promise<Sandbox> {
  const deadlineMs = deps.clock.monotonicMs() + options.waitMs
  let last = sandbox
  let isWoken = false
  let wakeUp = new AbortController()
  const unsubscribe = deps.wake.subscribe(`sandbox:${sandbox.id}`, () => {
    isWoken = true
    wakeUp.abort()
  })
  try {
    for (;;) {
      isWoken = false
      const now = await deps.readSandbox({ org_id: caller.org_id, id: sandbox.id })
      if (now !== null) last = now
      const restMs = deadlineMs - deps.clock.monotonicMs()
      if (now === null || now.status !== 'starting' || restMs <= 0 || options.signal.aborted) return last
      if (isWoken) continue
      wakeUp = new AbortController()
      await interruptibleSleep(
        deps.clock,
        Math.min(restMs, LOOK_AGAIN_MS),
        AbortSignal.any([wakeUp.signal, options.signal]),
      )
    }
  } finally {
    unsubscribe()
  }
}

import type { Caller } from '../../domain/orgs/caller.ts'
import type { RunId } from '../../domain/ids.ts'
import { isTerminal, SANDBOX_STATUSES, type SandboxStatus } from '../../domain/sandboxes/lifecycle.ts'
import { Problem } from '../../domain/problem.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import type { ControlDeps } from '../deps.ts'
import { getSandbox, type SandboxRef } from './read-sandboxes.ts'
import { maskHasStatus, statusMask, type WaitCondition } from './wait-hub.ts'

const NOT_STARTING = statusMask(SANDBOX_STATUSES.filter((status) => status !== 'starting'))
const TERMINAL = statusMask(SANDBOX_STATUSES.filter(isTerminal))

/** Takes a place among the waiting, before anything is admitted. Throws `rate_limited` when there is none. */
export function acquireWait(deps: Pick<ControlDeps, 'waits'>): () => void {
  const release = deps.waits.tryAcquire()
  if (release === null) {
    throw new Problem('rate_limited', {
      retryAfterSeconds: 1,
      details: {
        reason: 'readiness wait capacity exhausted',
        seen: deps.waits.inUse,
        accepted: 'the same request without waiting',
      },
    })
  }
  return release
}

/** How long is waited at most; `signal` is aborted when the client left, null: nobody can leave. */
export type WaitBudget = { readonly waitMs: number; readonly signal: AbortSignal | null }

/**
 * Waits until a sandbox that was admitted to start is no longer `starting`, or the budget is over, or the client left;
 * answers it as it is then, or as it was last when it is gone.
 */
export async function waitWhileStarting(
  deps: Pick<ControlDeps, 'waitHub'>,
  caller: Caller,
  sandbox: Sandbox,
  budget: WaitBudget,
): Promise<Sandbox> {
  const wish = { org_id: caller.org_id, id: sandbox.id, mask: NOT_STARTING, run_id: null }
  const found = await deps.waitHub.wait(wish, budget)
  return found === null || found === 'left' ? sandbox : found
}

/** What is waited for: any of these statuses, of whichever run or of one. */
export type WaitInput = {
  readonly statuses: readonly SandboxStatus[]
  readonly run_id: RunId | null
  readonly waitMs: number
}

/** A wait that has its place: `start` calls `onEnd` once, and answers how to end it early. */
export type PreparedWait = { readonly start: (onEnd: (end: Sandbox | Error) => void) => () => void }

/**
 * Waits until a sandbox has one of some statuses or the time is over, and ends with it as it is then. Pinned to a run, it
 * ends with `run_over` as soon as another run is the sandbox's latest, or that run ended and what is waited for can't come.
 * Throws or ends with `sandbox_not_found`, also for one that is deleted meanwhile. Throws `rate_limited` without a place.
 * It is begun, not awaited, because tens of thousands may wait: see `WaitHub.watch`.
 */
export async function waitForSandbox(
  deps: Pick<ControlDeps, 'waits' | 'waitHub' | 'db' | 'clock' | 'readSandbox'>,
  caller: Caller,
  ref: SandboxRef,
  { statuses, run_id, waitMs }: WaitInput,
): Promise<PreparedWait> {
  const release = acquireWait(deps)
  try {
    const { id } = 'id' in ref ? ref : await getSandbox(deps, caller, ref)
    // What a run is not to become once it is over ends the wait as well.
    const wanted = statusMask(statuses)
    const wish = { org_id: caller.org_id, id, mask: run_id === null ? wanted : wanted | TERMINAL, run_id }
    return { start: (onEnd) => startWait(deps, wish, { waitMs, wanted, onEnd, release }) }
  } catch (error) {
    release()
    throw error
  }
}

type Started = Pick<WaitInput, 'waitMs'> & {
  /** The statuses that were asked for, as a mask. */
  readonly wanted: number
  readonly onEnd: (end: Sandbox | Error) => void
  readonly release: () => void
}

function startWait(
  { waitHub, readSandbox }: Pick<ControlDeps, 'waitHub' | 'readSandbox'>,
  wish: WaitCondition,
  { waitMs, wanted, onEnd, release }: Started,
): () => void {
  const answer = (last: Sandbox | null): void => {
    onEnd(last === null ? new Problem('sandbox_not_found') : (runOverProblem(last, wish.run_id, wanted) ?? last))
  }
  const fail = (failure: unknown): void => {
    onEnd(failure instanceof Error ? failure : new Error('a sandbox could not be read', { cause: failure }))
  }
  return waitHub.watch(wish, waitMs, (end) => {
    release()
    if ('failure' in end) fail(end.failure)
    else if (end.found !== 'left') answer(end.found)
    else readSandbox(wish).then(answer, fail)
  })
}

/** Why the run that a wait is pinned to can't come to what is waited for any more, or null. */
function runOverProblem(sandbox: Sandbox, run_id: RunId | null, wanted: number): Problem | null {
  const { status } = sandbox
  const isLatest = sandbox.run_id === run_id
  if (run_id === null || (isLatest && (maskHasStatus(wanted, status) || !isTerminal(status)))) return null
  const why = isLatest ? `it ended, ${status}` : 'it is not the latest of this sandbox'
  return new Problem('run_over', {
    message: `run over: ${why}`,
    details: { field: 'query.run', seen: run_id, accepted: sandbox.run_id, status },
  })
}

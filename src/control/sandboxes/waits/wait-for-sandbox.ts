import type { Caller } from '../../../domain/orgs/caller.ts'
import type { RunId, SandboxId } from '../../../domain/ids.ts'
import { isTerminal, SANDBOX_STATUSES, type SandboxStatus } from '../../../domain/sandboxes/lifecycle.ts'
import { Problem } from '../../../domain/problem.ts'
import type { Sandbox, SandboxSummary } from '../../../domain/sandboxes/sandbox.ts'
import type { Semaphore } from '../../../lib/turns/semaphore.ts'
import type { BaseDeps } from '../../deps.ts'
import type { FoundSandbox } from '../../../store/sandboxes/sandboxes.ts'
import { getSummary, hasSpec, type SandboxReader, type SandboxRef } from '../read-sandboxes.ts'
import { maskHasStatus, statusMask, type WaitCondition, type WaitHub } from './wait-hub.ts'

/** Limits how many requests of this process wait for sandboxes at the same time. */
export type WaitLimit = { readonly waitPermits: Semaphore }
export type WaitDeps = WaitLimit & { readonly waitHub: WaitHub }

const NOT_STARTING = statusMask(SANDBOX_STATUSES.filter((status) => status !== 'starting'))
const TERMINAL = statusMask(SANDBOX_STATUSES.filter(isTerminal))

/**
 * Acquires a permit to wait and returns the function that releases it. Throws `rate_limited` when no permit is left.
 */
export function acquireWaitPermit(deps: WaitLimit): () => void {
  const release = deps.waitPermits.tryAcquire()
  if (release === null) {
    throw new Problem('rate_limited', {
      retryAfterSeconds: 1,
      details: {
        reason: 'readiness wait capacity exhausted',
        seen: deps.waitPermits.inUse,
        accepted: 'the same request without waiting',
      },
    })
  }
  return release
}

/**
 * How long to wait at most, in milliseconds. `signal` is aborted when the client disconnects. It is null if no client
 * can disconnect.
 */
export type WaitBudget = { readonly waitMs: number; readonly signal: AbortSignal | null }

/**
 * Waits until a starting sandbox is no longer `starting`, the time is over or the client disconnects. Resolves with the
 * state of the sandbox at that moment. Resolves with null if it can't be read any more, and if the client disconnected. With
 * `isUnmet`, the caller knows that the sandbox is still starting.
 */
export async function waitWhileStarting(
  deps: Pick<WaitDeps, 'waitHub'> & Pick<SandboxReader, 'addSpec'>,
  caller: Caller,
  id: SandboxId,
  budget: WaitBudget & { readonly isUnmet?: boolean },
): Promise<Sandbox | null> {
  const condition = { org_id: caller.org_id, id, mask: NOT_STARTING, run_id: null }
  const found = await deps.waitHub.wait(condition, budget)
  return found === null || found === 'left' ? null : deps.addSpec(found)
}

/** The statuses that end a wait. With `run_id`, only statuses of this run count. */
export type WaitInput = {
  readonly statuses: readonly SandboxStatus[]
  readonly run_id: RunId | null
  readonly waitMs: number
}

/**
 * A wait that has acquired its permit. `start` calls `onEnd` once, and returns a function that ends the wait early. `beforeLarge`: see
 * `SandboxReader.addSpec`.
 */
export type PreparedWait = { readonly start: (onEnd: OnEnd, beforeLarge?: () => void) => () => void }
type OnEnd = (end: Sandbox | Error) => void

/**
 * Prepares a wait until a sandbox has one of the given statuses or the time is over. The wait ends with the state of
 * the sandbox at that moment. With `run_id`, it ends with `run_over` once another run is the latest, or once the run
 * has ended and can't get the status. Throws or ends with `sandbox_not_found`, also when the sandbox is deleted during
 * the wait. Throws `rate_limited` when no permit is left. The caller starts the wait instead of awaiting it, which
 * saves memory: tens of thousands of waits may be open. See `WaitHub.watch`.
 */
export async function waitForSandbox(
  deps: Pick<BaseDeps, 'db' | 'clock'> & WaitDeps & SandboxReader,
  caller: Caller,
  ref: SandboxRef,
  { statuses, run_id, waitMs }: WaitInput,
): Promise<PreparedWait> {
  const release = acquireWaitPermit(deps)
  try {
    const { id } = 'id' in ref ? ref : await getSummary(deps, caller, ref)
    const wanted = statusMask(statuses)
    // The end of the run ends the wait as well, because the run can't get another status afterwards.
    const condition = { org_id: caller.org_id, id, mask: run_id === null ? wanted : wanted | TERMINAL, run_id }
    return {
      start: (onEnd, beforeLarge) => startWait(deps, condition, { waitMs, wanted, onEnd, beforeLarge, release }),
    }
  } catch (error) {
    release()
    throw error
  }
}

type Started = Pick<WaitInput, 'waitMs'> & {
  /** The requested statuses, as a mask. */
  readonly wanted: number
  readonly onEnd: OnEnd
  readonly beforeLarge: (() => void) | undefined
  readonly release: () => void
}

function startWait(
  { waitHub, readFound, addSpec }: Pick<WaitDeps, 'waitHub'> & SandboxReader,
  condition: WaitCondition,
  { waitMs, wanted, onEnd, beforeLarge, release }: Started,
): () => void {
  const answer = (last: FoundSandbox | null): void => {
    const over = last === null ? null : runOverProblem(last, condition.run_id, wanted)
    if (last === null) onEnd(new Problem('sandbox_not_found'))
    else if (over !== null) onEnd(over)
    else if (hasSpec(last)) onEnd(last)
    else addSpec(last, beforeLarge).then(answer, fail)
  }
  const fail = (failure: unknown): void => {
    onEnd(failure instanceof Error ? failure : new Error('a sandbox could not be read', { cause: failure }))
  }
  return waitHub.watch(condition, waitMs, (end) => {
    release()
    if ('failure' in end) fail(end.failure)
    else if (end.found !== 'left') answer(end.found)
    else readFound(condition).then(answer, fail)
  })
}

/** The problem of a wait for a run that can no longer get any of the wanted statuses. Null if the run still can. */
function runOverProblem(sandbox: SandboxSummary, run_id: RunId | null, wanted: number): Problem | null {
  const { status } = sandbox
  const isLatest = sandbox.run_id === run_id
  if (run_id === null || (isLatest && (maskHasStatus(wanted, status) || !isTerminal(status)))) return null
  const why = isLatest ? `it ended, ${status}` : 'it is not the latest of this sandbox'
  return new Problem('run_over', {
    message: `run over: ${why}`,
    details: { field: 'query.run', seen: run_id, accepted: sandbox.run_id, status },
  })
}

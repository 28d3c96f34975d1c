import type { Caller } from '../domain/caller.ts'
import type { RunId } from '../domain/ids.ts'
import { isTerminal, SANDBOX_STATUSES, type SandboxStatus } from '../domain/lifecycle.ts'
import { Problem } from '../domain/problem.ts'
import type { Sandbox } from '../domain/sandbox.ts'
import type { ControlDeps } from './deps.ts'
import { getSandbox, type SandboxRef } from './read-sandboxes.ts'

const NOT_STARTING = SANDBOX_STATUSES.filter((status) => status !== 'starting')
const TERMINAL = SANDBOX_STATUSES.filter(isTerminal)

/** Takes a place among the waiting, before anything is admitted. Throws `rate_limited` when there is none. */
export function takeWait(deps: Pick<ControlDeps, 'waits'>): () => void {
  const giveBack = deps.waits.take()
  if (giveBack === null) {
    throw new Problem('rate_limited', {
      retryAfterSeconds: 1,
      details: {
        reason: 'readiness wait capacity exhausted',
        seen: deps.waits.taken,
        accepted: 'the same request without waiting',
      },
    })
  }
  return giveBack
}

/** How long is waited at most; `signal` is aborted when the client left. */
export type WaitBudget = { readonly waitMs: number; readonly signal: AbortSignal }

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
  const wish = { org_id: caller.org_id, id: sandbox.id, statuses: NOT_STARTING, run_id: null }
  const found = await deps.waitHub.wait(wish, budget)
  return found === null || found === 'left' ? sandbox : found
}

/** What is waited for: any of these statuses, of whichever run or of one. */
export type WaitFor = { readonly statuses: readonly SandboxStatus[]; readonly run_id: RunId | null } & WaitBudget

/**
 * Waits until a sandbox has one of some statuses or the budget is over, and answers it as it is then. Pinned to a run, it
 * throws `run_over` as soon as another run is the sandbox's latest, or that run ended and what is waited for can't come.
 * Throws `sandbox_not_found`, also for one that is deleted meanwhile, and `rate_limited` when there is no place.
 */
export async function waitForSandbox(
  deps: Pick<ControlDeps, 'waits' | 'waitHub' | 'db' | 'clock' | 'readSandbox'>,
  caller: Caller,
  ref: SandboxRef,
  { statuses, run_id, waitMs, signal }: WaitFor,
): Promise<Sandbox> {
  const giveBack = takeWait(deps)
  try {
    const sandbox = 'id' in ref ? null : await getSandbox(deps, caller, ref)
    const id = 'id' in ref ? ref.id : sandbox?.id
    if (id === undefined) throw new Problem('sandbox_not_found')
    // What a run is not to become once it is over ends the wait as well.
    const ends = run_id === null ? statuses : [...statuses, ...TERMINAL]
    const found = await deps.waitHub.wait({ org_id: caller.org_id, id, statuses: ends, run_id }, { waitMs, signal })
    const last = found === 'left' ? await getSandbox(deps, caller, { id }) : found
    if (last === null) throw new Problem('sandbox_not_found')
    if (run_id !== null) refuseOver(last, run_id, statuses)
    return last
  } finally {
    giveBack()
  }
}

function refuseOver(sandbox: Sandbox, run_id: RunId, statuses: readonly SandboxStatus[]): void {
  const { status } = sandbox
  const isLatest = sandbox.run_id === run_id
  if (isLatest && (statuses.includes(status) || !isTerminal(status))) return
  const why = isLatest ? `it ended, ${status}` : 'it is not the latest of this sandbox'
  throw new Problem('run_over', {
    message: `run over: ${why}`,
    details: { field: 'query.run', seen: run_id, accepted: sandbox.run_id, status },
  })
}

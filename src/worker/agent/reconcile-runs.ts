/** Reconciles the driver's runs with the runs that the control plane desires. */
import { setImmediate } from 'node:timers/promises'
import type { DesiredRun, ObservedRun } from '../../contract/workers/worker-protocol.ts'
import { decide, withStoppedRuns, type WorkerAction } from '../../domain/workers/decide.ts'
import type { SandboxId } from '../../domain/ids.ts'
import { interruptibleSleep, NOTIFIED } from '../../lib/clock.ts'
import type { Driver } from '../drivers/driver.ts'
import type { Agent } from './agent-state.ts'

/**
 * Observes all runs: those that the driver lists, starts that it does not list yet, desired runs that were stopped before
 * their start, and desired runs that were destroyed.
 */
export async function observeRuns({ deps, steps, state }: Agent): Promise<readonly ObservedRun[]> {
  const listed = await deps.driver.list()
  const known = new Set(listed.map(({ run_id }) => run_id))
  const held = [...listed, ...steps.startingRuns().filter(({ run_id }) => !known.has(run_id))]
  const desired = state.desiredRuns ?? []
  const destroyed = desired.flatMap(({ run_id }) => (known.has(run_id) ? [] : (state.destroyedRuns.get(run_id) ?? [])))
  return withStoppedRuns(desired, [...held, ...destroyed])
}

/**
 * Observes the runs and begins the steps that they need. With `observed`, it takes these instead: they must still be what the
 * driver would list. Only one call works at a time, because two calls could undo each other's steps. Never rejects: it logs a
 * failure, and the next sync tries again.
 */
export async function reconcileRuns(agent: Agent, observed: readonly ObservedRun[] | null = null): Promise<void> {
  try {
    await reconcile(agent, observed)
  } catch (error) {
    logFailure(agent, error)
  }
}

async function reconcile(agent: Agent, observed: readonly ObservedRun[] | null): Promise<void> {
  const { state } = agent
  state.mustReconcile = observed === null || state.isReconciling
  if (state.isReconciling) return
  state.isReconciling = true
  try {
    if (observed !== null) beginSteps(agent, observed)
    while (state.mustReconcile) {
      await setImmediate() // steps that end in one turn of the event loop share a look at all runs
      state.mustReconcile = false
      beginSteps(agent, await observeRuns(agent))
    }
  } finally {
    state.isReconciling = false
  }
}

/**
 * Destroys all runs, including desired ones. Resolves with the number of runs that are left. May be repeated. With `keepsEnded`,
 * the records of ended runs stay until the control plane has answered a report of how they ended. A run that had started is
 * reported as ended from then on. A late report may still say that it runs, so the control plane may still desire it, and
 * to start it again would run it twice.
 */
export async function destroyAllRuns(agent: Agent, { keepsEnded }: { readonly keepsEnded: boolean }): Promise<number> {
  const { deps, state, steps } = agent
  state.desiredRuns = keepsEnded ? null : []
  state.laterRuns = new Set()
  state.desiredVersion = null
  state.appliedSeq = state.seq // ignores answers to earlier reports: they could start the destroyed runs again
  const observeLeft = async (): Promise<readonly ObservedRun[]> =>
    (await observeRuns(agent)).filter(({ phase }) => !keepsEnded || phase !== 'ended')
  try {
    for (const { run_id, sandbox_id, phase } of await observeLeft()) {
      if (phase === 'running')
        state.destroyedRuns.set(run_id, { run_id, sandbox_id, phase: 'ended', outcome: DESTROYED })
      steps.cancelStart(run_id)
      steps.begin({ id: run_id, starting: null, work: () => deps.driver.remove(run_id) })
    }
    return (await observeLeft()).length
  } catch (error) {
    logFailure(agent, error)
    return Number.POSITIVE_INFINITY
  } finally {
    state.appliedSeq = state.seq
  }
}

const DESTROYED = {
  kind: 'lost',
  message: 'the worker destroyed this run, because it could not reach the control plane before its renew deadline',
} as const

function logFailure({ deps }: Agent, error: unknown): void {
  deps.log.error({ error }, 'the worker could not decide its next steps; it will retry at the next sync')
}

function beginSteps(agent: Agent, held: readonly ObservedRun[]): void {
  const { deps, fence, state, steps } = agent
  const { desiredRuns, laterRuns, discards } = state
  if (desiredRuns === null) return
  const desiredById = new Map(desiredRuns.map((run) => [run.run_id, run]))
  const heldSandboxes = new Set(held.map(({ sandbox_id }) => sandbox_id))
  for (const sandbox of discards)
    if (!heldSandboxes.has(sandbox))
      steps.begin({ id: sandbox, starting: null, work: () => discardSandbox(agent, sandbox) })
  for (const action of decide(desiredRuns, held, laterRuns)) {
    const { kind, run_id } = action
    if (kind === 'start' && fence.isActive()) continue // a late answer may desire a run that was declared lost meanwhile
    const desired = desiredById.get(run_id)
    if (kind !== 'start') steps.cancelStart(run_id)
    const starting: ObservedRun | null =
      kind === 'start' && desired !== undefined ? { run_id, sandbox_id: desired.sandbox_id, phase: 'starting' } : null
    steps.begin({ id: run_id, starting, work: (abort) => performAction(deps.driver, { action, desired }, abort) })
  }
}

type ActionOnRun = { readonly action: WorkerAction; readonly desired: DesiredRun | undefined }

async function performAction(driver: Driver, { action, desired }: ActionOnRun, abort: AbortSignal): Promise<void> {
  if (action.kind === 'stop') await driver.stop(action.run_id, action.grace_ms)
  else if (action.kind === 'remove') await driver.remove(action.run_id)
  else if (desired !== undefined) await driver.start(desired, abort)
}

/** Replaces the list of sandboxes to discard. Ends every `waitForDiscards` for an earlier list. */
export function setDiscards({ state }: Agent, sandboxes: readonly SandboxId[]): void {
  state.discardsDone.abort(NOTIFIED)
  state.discardsDone = new AbortController()
  state.discards = sandboxes
}

/** Deletes a sandbox's writable layer, log and metrics. */
async function discardSandbox({ deps, state }: Agent, sandbox: SandboxId): Promise<void> {
  await deps.driver.discard(sandbox)
  await deps.logs.discard(sandbox)
  await deps.metrics.discard(sandbox)
  // The runs are reconciled again before the next answer, and must not discard this sandbox a second time.
  state.discards = state.discards.filter((one) => one !== sandbox)
  if (state.discards.length === 0) state.discardsDone.abort(NOTIFIED)
}

/** Resolves once all sandboxes on the list are discarded, the list is replaced, or `limitMs` has passed. */
export async function waitForDiscards({ deps, state, signal }: Agent, limitMs: number): Promise<void> {
  if (state.discards.length === 0) return
  await interruptibleSleep(deps.clock, limitMs, state.discardsDone.signal, signal)
}

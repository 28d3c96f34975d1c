/**
 * The only module that writes the status of sandboxes. Every change follows the lifecycle table and names its cause. It
 * writes status, run and audit event in one transaction. Many transitions share one transaction: see
 * docs/decisions/0021.
 *
 * Locks are taken in this order, and within each kind in the order of ids: sandboxes, workers, volumes, organizations.
 */
import { isTerminal } from '../../../domain/sandboxes/lifecycle.ts'
import { splitByQuota } from '../../../domain/orgs/quota.ts'
import type { Queryable, Transaction } from '../../../store/postgres/database.ts'
import * as orgs from '../../../store/orgs/orgs.ts'
import * as quotas from '../../../store/orgs/quotas.ts'
import { hostPortsOf } from '../../../domain/workers/publishing.ts'
import * as sandboxes from '../../../store/sandboxes/sandboxes.ts'
import type { NewEvent } from '../../../store/events/events.ts'
import type { NewRun } from '../../../store/sandboxes/sandbox-state-rows.ts'
import * as sandboxStates from '../../../store/sandboxes/sandbox-states.ts'
import type { BaseDeps, WriteDeps } from '../../deps.ts'
import type { Precondition } from '../if-match.ts'
import {
  assignVolumes,
  lockChosenWorkers,
  locksVolumes,
  reserveCapacity,
  type RefusedSteps,
} from './transition-reservations.ts'
import { resolveStep, topicsToNotify, writesOf, type TransitionAnswer, type TransitionRequest, type TransitionStep } from './transition-step.ts' // prettier-ignore

/**
 * How long clients can still read an ephemeral sandbox after it ended, in milliseconds: 5 s after they can first see the end, which
 * is once the transaction with this time has committed. A poll in that time sees the last status.
 */
export const EPHEMERAL_VISIBLE_MS = 5_000 + 500

export type TransitionDeps = WriteDeps & Pick<BaseDeps, 'notifications'> & TransitionObserver & EventObserver

/** Learns about transitions once they are committed, for metrics. */
export type TransitionObserver = { readonly onTransitions?: (steps: readonly TransitionStep[]) => void }

/** Learns about audit events of sandboxes once they are committed, for the log. */
export type EventObserver = { readonly onEvents?: (events: readonly NewEvent[]) => void }

/** Calls several observers. */
export function observeTransitions(observers: readonly TransitionObserver[]): Required<TransitionObserver> {
  return {
    onTransitions(steps) {
      for (const { onTransitions } of observers) onTransitions?.(steps)
    },
  }
}

/** The dependency of use cases that move the sandbox of a request. */
export type TransitionQueue = {
  /** Moves a sandbox in one transaction with concurrent requests. `transition-batches.ts` implements it. */
  readonly moveQueued: (request: TransitionRequest) => Promise<TransitionResult>
}

/** Checks something in a transaction. If it rejects, the transaction is rolled back, and the call rejects. */
type TransactionGuard = (tx: Queryable) => Promise<void>

/** `first` must resolve before the transaction does anything else, and `fence` before it writes. */
export type TransactionGuards = { readonly first?: TransactionGuard; readonly fence?: TransactionGuard }

/** The result of one transition of a batch: its answer, or the error that affected it alone. */
export type TransitionResult = { readonly answer: TransitionAnswer } | { readonly error: unknown }

/**
 * Moves a sandbox through its lifecycle and notifies all processes that wait for it. May be repeated: the second call
 * is answered `stale`. With a precondition, the sandbox moves in a transaction of its own, which checks it.
 */
export async function moveSandbox(
  deps: TransitionDeps & TransitionQueue,
  request: TransitionRequest,
  precondition: Precondition | null = null,
): Promise<TransitionAnswer> {
  if (precondition !== null) return moveAlone(deps, request, { first: precondition })
  const result = await deps.moveQueued(request)
  if ('error' in result) throw result.error
  return result.answer
}

/** Moves a sandbox in a transaction of its own. */
export async function moveAlone(
  deps: TransitionDeps,
  request: TransitionRequest,
  guards: TransactionGuards,
): Promise<TransitionAnswer> {
  const answer = (await moveTogether(deps, [request], guards)).get(request)
  if (answer === undefined) throw new Error('a transition got no answer')
  return answer
}

/** Moves several sandboxes in one transaction, and publishes the notifications after its commit. */
export async function moveTogether(
  deps: TransitionDeps,
  requests: readonly TransitionRequest[],
  { first, fence }: TransactionGuards,
): Promise<TransitionAnswers> {
  return inTransitionScope(deps, async (scope) => {
    await first?.(scope.tx)
    return moveInTransaction(deps, scope, requests, fence?.(scope.tx))
  })
}

/** A transaction, with the topics to publish and the transitions and audit events to report after its commit. */
export type TransactionScope = {
  readonly tx: Transaction
  readonly topics: string[]
  readonly steps: TransitionStep[]
  readonly events: NewEvent[]
}

/** Runs `work` in one transaction. After its commit, publishes the topics and reports the transitions of the scope. */
export async function inTransitionScope<Result>(
  deps: Pick<TransitionDeps, 'db' | 'notifications' | 'onTransitions' | 'onEvents'>,
  work: (scope: TransactionScope) => Promise<Result>,
): Promise<Result> {
  let committed: Omit<TransactionScope, 'tx'> = { topics: [], steps: [], events: [] }
  const result = await deps.db.transaction('system', async (tx) => {
    const scope = { tx, topics: [], steps: [], events: [] } // a repeated transaction begins with an empty scope
    committed = scope
    return work(scope)
  })
  deps.notifications.publish([...new Set(committed.topics)])
  deps.onTransitions?.(committed.steps)
  deps.onEvents?.(committed.events)
  return result
}
export type TransitionAnswers = ReadonlyMap<TransitionRequest, TransitionAnswer>

/**
 * Moves sandboxes within a transaction that may make other changes too. At most one request may name each sandbox. The
 * caller publishes `scope.topics` after the commit. If there are several requests, those that must lock volumes are
 * left out and get no answer, because their locks would be out of order. Nothing is written before `fenced` resolves.
 */
export async function moveInTransaction(
  deps: Pick<WriteDeps, 'clock' | 'uuids'>,
  scope: TransactionScope,
  requests: readonly TransitionRequest[],
  fenced?: Promise<void>,
): Promise<TransitionAnswers> {
  const { tx, topics } = scope
  const now = deps.clock.now()
  const answers = new Map<TransitionRequest, TransitionAnswer>()
  const [rows, free] = await Promise.all([
    sandboxStates.lock(
      tx,
      requests.map(({ sandbox_id }) => sandbox_id),
    ),
    lockChosenWorkers(tx, requests, now),
    fenced,
  ])
  const rowOf = new Map(rows.map((row) => [row.id, row]))
  let steps: readonly TransitionStep[] = requests.flatMap((request) => {
    const step = resolveStep(deps, { request, row: rowOf.get(request.sandbox_id), now })
    if (!('kind' in step)) return [step]
    answers.set(request, step)
    return []
  })
  if (requests.length > 1) steps = steps.filter((step) => !locksVolumes(step))
  const refuse = (refused: RefusedSteps): void => {
    for (const [{ request }, answer] of refused) answers.set(request, answer)
    steps = steps.filter((step) => !refused.has(step))
  }
  refuse(reserveCapacity(free, steps))
  refuse(await assignVolumes(tx, steps))
  refuse(await openRuns(tx, steps, now))
  const writes = steps.map((step) => writesOf(deps, step))
  if (writes.length > 0) sandboxStates.writeTransitions(tx, writes)
  for (const { request, row } of steps) {
    const ports = hostPortsOf(request.facts)
    if (request.event === 'worker_running' && ports !== null) await sandboxes.showPorts(tx, row.id, ports)
  }
  scope.events.push(...writes.map(({ event }) => event))
  const ended = steps.filter(({ row, status }) => isTerminal(status) && row.ephemeral && !row.is_hidden)
  const visibleUntil = new Date(now.getTime() + EPHEMERAL_VISIBLE_MS)
  if (ended.length > 0)
    await sandboxes.hide(
      tx,
      ended.map(({ row }) => row.id),
      visibleUntil,
    )
  for (const step of steps) {
    topics.push(...topicsToNotify(step))
    scope.steps.push(step)
    answers.set(step.request, { kind: 'moved', status: step.status, run_id: step.run_id })
  }
  return answers
}

/** Opens the runs of starts that fit the quotas. Locks an organization only if its sandboxes must be counted. */
async function openRuns(tx: Queryable, steps: readonly TransitionStep[], now: Date): Promise<RefusedSteps> {
  const refused = new Map<TransitionStep, TransitionAnswer>()
  const starts = steps.flatMap((step) => {
    const run = runOpenedBy(step)
    return run === null ? [] : [{ step, run }]
  })
  if (starts.length === 0) return refused
  const free = await sandboxStates.openRuns(
    tx,
    starts.map(({ run }) => run),
    { isQuotaChecked: false },
  )
  const counted = Map.groupBy(
    starts.filter(({ run }) => !free.has(run.id)),
    ({ run }) => run.org_id,
  )
  for (const [org, unjudged] of [...counted].toSorted(([one], [other]) => (one < other ? -1 : 1))) {
    await orgs.lock(tx, org)
    const usage = await quotas.readUsage(tx, org, { now, counts: 'decisive' })
    const divided = splitByQuota(usage, unjudged, ({ run }) => {
      return { ...run, creates: false, starts: true, max_duration_secs: null }
    })
    for (const [{ step }, refusal] of divided.refused) refused.set(step, { kind: 'refused', refusal, slug: usage.slug })
    const fitting = divided.fitting.map(({ run }) => run)
    if (fitting.length > 0) await sandboxStates.openRuns(tx, fitting, { isQuotaChecked: true })
  }
  return refused
}

function runOpenedBy({ request, row, run_id, at }: TransitionStep): NewRun | null {
  if (request.event !== 'start_admitted' || run_id === null) return null
  const { traceParent: trace_parent = null } = request
  const { id: sandbox_id, org_id, vcpus, memory_mib, disk_size_mib, ephemeral } = row
  return { id: run_id, sandbox_id, org_id, vcpus, memory_mib, disk_size_mib, ephemeral, opened_at: at, trace_parent }
}

/**
 * The one writer of sandbox status. Every change of it goes through the lifecycle table, names its cause, and writes
 * status, run and audit event in one transaction. Many transitions share one: see docs/decisions/0021.
 *
 * Locks are taken in this order, each kind in the order of its ids: sandboxes, workers, volumes, organizations.
 */
import type { Actor } from '../../domain/orgs/caller.ts'
import type { RunId, SandboxId, WorkerId } from '../../domain/ids.ts'
import {
  isTerminal,
  type CauseCode,
  type SandboxStatus,
  type TransitionEvent,
} from '../../domain/sandboxes/lifecycle.ts'
import { splitByQuota, type QuotaRefusal } from '../../domain/orgs/quota.ts'
import type { RunOutcome } from '../../domain/sandboxes/run.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Uuids } from '../../lib/uuid.ts'
import type { Database, Queryable } from '../../store/postgres/database.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import * as quotas from '../../store/orgs/quotas.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'
import type { NewRun } from '../../store/sandboxes/sandbox-state-rows.ts'
import * as sandboxStates from '../../store/sandboxes/sandbox-states.ts'
import type { Notifications } from '../../store/postgres/notifications.ts'
import { makeBatchFailureCheck } from './batch-failures.ts'
import { locksVolumes, reserveCapacity, assignVolumes, type RefusedSteps } from './transition-reservations.ts'
import { resolveStep, topicsOf, writesOf, type TransitionStep } from './transition-writes.ts'

/** How long an ephemeral sandbox that ended can still be read, so that a client's poll meets its last status. */
export const EPHEMERAL_VISIBLE_MS = 5_000

export type TransitionDeps = {
  readonly db: Database
  readonly clock: Clock
  readonly uuids: Uuids
  readonly notifications: Notifications
  /**
   * Called first in each transaction of `transition` and `transitionAll`; its rejection rolls that back and is the
   * rejection of the call. By it one who leads the loops moves nothing any more once another leads.
   */
  readonly fence?: (tx: Queryable) => Promise<void>
  /** Where `transition` hands its requests to, unless it is fenced: they move with others that arrive at the same time. */
  readonly together?: (request: Transition) => Promise<BatchedTransition>
}

/** How a transition that moved with others ended: its answer, or what it alone was rejected with. */
export type BatchedTransition = { readonly answer: TransitionAnswer } | { readonly error: unknown }

/** Why a transition happens: who asked, in one word why, and in words what failed if something did. */
export type Cause = { readonly actor: Actor; readonly code: CauseCode; readonly message?: string | null }
export const SYSTEM_ACTOR: Actor = { kind: 'system', code: 'sandyard', label: 'Sandyard' }

export type Transition = {
  readonly sandbox_id: SandboxId
  /** The run that the message is about: a message about another than the open one is stale. Null: whichever is open. */
  readonly run_id: RunId | null
  readonly event: TransitionEvent
  readonly cause: Cause
  /** With `start_admitted`: the id of the run that it opens, which no run may have; without it, one is made. */
  readonly opens?: RunId
  /** With `placed`: where. */
  readonly worker?: { readonly id: WorkerId; readonly name: string }
  /** With an event that ends a run: how the worker says it ended. */
  readonly outcome?: RunOutcome
  /** With `worker_running`: what the driver tells, for the audit event. */
  readonly facts?: Readonly<Record<string, string>>
}

export type TransitionAnswer =
  | { readonly kind: 'moved'; readonly status: SandboxStatus; readonly run_id: RunId | null }
  | { readonly kind: 'stale'; readonly status: SandboxStatus; readonly run_id: RunId | null }
  | { readonly kind: 'refused'; readonly refusal: QuotaRefusal; readonly slug: string }
  /** A start of a sandbox that mounts volumes which are not there any more, by their names. */
  | { readonly kind: 'volumes_gone'; readonly names: readonly string[] }
  | { readonly kind: 'absent' }

/**
 * Moves a sandbox, in a transaction of its own or with others, and wakes whoever waits for it. May be repeated: the second
 * is stale.
 */
export async function transition(deps: TransitionDeps, request: Transition): Promise<TransitionAnswer> {
  if (deps.together === undefined || deps.fence !== undefined) return transitionAlone(deps, request)
  const settled = await deps.together(request)
  if ('error' in settled) throw settled.error
  return settled.answer
}

async function transitionAlone(deps: TransitionDeps, request: Transition): Promise<TransitionAnswer> {
  const topics: string[] = []
  const answer = await deps.db.transaction('system', async (tx) => {
    topics.length = 0
    await deps.fence?.(tx)
    return transitionInTransaction(deps, { tx, topics }, request)
  })
  deps.notifications.publish(topics)
  return answer
}

type TransactionScope = { readonly tx: Queryable; readonly topics: string[] }
type MoveDeps = Pick<TransitionDeps, 'clock' | 'uuids'>
type Answers = Map<Transition, TransitionAnswer>

/** The same within a transaction that does more; the caller publishes `topics` after the commit. */
export async function transitionInTransaction(
  deps: MoveDeps,
  scope: TransactionScope,
  request: Transition,
): Promise<TransitionAnswer> {
  const answer = (await transitionManyInTransaction(deps, scope, [request])).get(request)
  if (answer === undefined) throw new Error('a transition got no answer')
  return answer
}

/**
 * Moves many sandboxes in one transaction, as `transition` does each; those of one sandbox one after another, in their
 * order. What fails with others is moved alone, so that a broken row keeps no other from moving; so is what needs volumes,
 * whose locks would be taken out of order. Rejects when the database can't be reached, and with what `deps.fence` rejects
 * with.
 */
export async function transitionBatch(
  deps: TransitionDeps,
  requests: readonly Transition[],
): Promise<readonly BatchedTransition[]> {
  const settled = new Map<Transition, BatchedTransition>()
  let isFencing = false
  const fence = async (tx: Queryable): Promise<void> => {
    isFencing = true
    await deps.fence?.(tx)
    isFencing = false
  }
  const failsAll = makeBatchFailureCheck()
  const isForAll = (error: unknown): boolean => isFencing || failsAll(error)
  for (let left = requests; left.length > 0;) {
    const bySandbox = [...Map.groupBy(left, ({ sandbox_id }) => sandbox_id).values()]
    const firsts = bySandbox.flatMap((ofOne) => ofOne.slice(0, 1))
    const answers = await tryTogether({ ...deps, fence }, firsts, isForAll)
    for (const request of firsts) {
      const answer = answers.get(request)
      settled.set(request, answer === undefined ? await tryAlone({ ...deps, fence }, request, isForAll) : { answer })
    }
    left = bySandbox.flatMap((ofOne) => ofOne.slice(1))
  }
  return requests.map((request) => settled.get(request) ?? { error: new Error('a transition got no answer') })
}

/** The answers of one transaction around requests for different sandboxes; without those that are to move alone. */
async function tryTogether(
  deps: TransitionDeps,
  requests: readonly Transition[],
  isForAll: (error: unknown) => boolean,
): Promise<Answers> {
  if (requests.length === 1) return new Map()
  const topics: string[] = []
  try {
    const answers = await deps.db.transaction('system', async (tx) => {
      topics.length = 0
      await deps.fence?.(tx)
      return transitionManyInTransaction(deps, { tx, topics }, requests)
    })
    deps.notifications.publish([...new Set(topics)])
    return answers
  } catch (error) {
    if (isForAll(error)) throw error
    return new Map() // each alone says which it was
  }
}

async function tryAlone(
  deps: TransitionDeps,
  request: Transition,
  isForAll: (error: unknown) => boolean,
): Promise<BatchedTransition> {
  try {
    return { answer: await transitionAlone(deps, request) }
  } catch (error) {
    if (isForAll(error)) throw error
    return { error }
  }
}

/**
 * Moves sandboxes, each of which is in one request, within a transaction that does more; the caller publishes `topics` after
 * the commit. Of several requests, those that need volumes get no answer.
 */
export async function transitionManyInTransaction(
  deps: MoveDeps,
  scope: TransactionScope,
  requests: readonly Transition[],
): Promise<Answers> {
  const { tx, topics } = scope
  const now = deps.clock.now()
  const answers: Answers = new Map()
  const rows = await sandboxStates.lock(
    tx,
    requests.map(({ sandbox_id }) => sandbox_id),
  )
  const rowOf = new Map(rows.map((row) => [row.id, row]))
  let steps: readonly TransitionStep[] = requests.flatMap((request) => {
    const step = resolveStep(deps, { request, row: rowOf.get(request.sandbox_id), now })
    if (!('kind' in step)) return [step]
    answers.set(request, step)
    return []
  })
  if (requests.length > 1) steps = steps.filter((step) => !locksVolumes(step))
  for (const settleSome of [reserveCapacity, assignVolumes, openRuns]) {
    const refused = await settleSome(tx, steps, now)
    for (const [{ request }, answer] of refused) answers.set(request, answer)
    steps = steps.filter((step) => !refused.has(step))
  }
  if (steps.length > 0)
    await sandboxStates.write(
      tx,
      steps.map((step) => writesOf(deps, step)),
    )
  const ended = steps.filter(({ row, status }) => isTerminal(status) && row.ephemeral && !row.is_hidden)
  const visibleUntil = new Date(now.getTime() + EPHEMERAL_VISIBLE_MS)
  if (ended.length > 0)
    await sandboxes.hide(
      tx,
      ended.map(({ row }) => row.id),
      visibleUntil,
    )
  for (const step of steps) {
    topics.push(...topicsOf(step))
    answers.set(step.request, { kind: 'moved', status: step.status, run_id: step.run_id })
  }
  return answers
}

/** Opens the runs of starts, or says why an organization may not. It is locked if it must count. */
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
    const standing = await quotas.readUsage(tx, org, { now, counts: 'decisive' })
    const divided = splitByQuota(standing, unjudged, ({ run }) => {
      return { ...run, creates: false, starts: true, max_duration_secs: null }
    })
    for (const [{ step }, refusal] of divided.refused)
      refused.set(step, { kind: 'refused', refusal, slug: standing.slug })
    const fitting = divided.fitting.map(({ run }) => run)
    if (fitting.length > 0) await sandboxStates.openRuns(tx, fitting, { isQuotaChecked: true })
  }
  return refused
}

function runOpenedBy({ request, row, run_id, at }: TransitionStep): NewRun | null {
  if (request.event !== 'start_admitted' || run_id === null) return null
  const { id: sandbox_id, org_id, vcpus, memory_mib, disk_size_mib, ephemeral } = row
  return { id: run_id, sandbox_id, org_id, vcpus, memory_mib, disk_size_mib, ephemeral, opened_at: at }
}

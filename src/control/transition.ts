/**
 * The one writer of sandbox status. Every change of it goes through the lifecycle table, names its cause, and writes
 * status, run and audit event in one transaction.
 */
import type { Actor } from '../domain/caller.ts'
import type { RunId, SandboxId, WorkerId } from '../domain/ids.ts'
import { asId } from '../domain/ids.ts'
import {
  isTerminal,
  nextStatus,
  type CauseCode,
  type SandboxStatus,
  type StatusReason,
  type TransitionEvent,
} from '../domain/lifecycle.ts'
import { INT32_MAX } from '../domain/limits.ts'
import { judge, type QuotaRefusal } from '../domain/quota.ts'
import type { Outcome } from '../domain/run.ts'
import type { Clock } from '../lib/clock.ts'
import type { Uuids } from '../lib/uuid.ts'
import type { Database, Queryable } from '../store/database.ts'
import type { NewEvent } from '../store/events.ts'
import * as orgs from '../store/orgs.ts'
import * as quotas from '../store/quotas.ts'
import * as rooms from '../store/rooms.ts'
import * as sandboxes from '../store/sandboxes.ts'
import * as standings from '../store/standings.ts'
import * as volumeMounts from '../store/volume-mounts.ts'
import type { Wake } from '../store/wake.ts'

/** How long an ephemeral sandbox that ended can still be read, so that a client's poll meets its last status. */
export const EPHEMERAL_LINGER_MS = 5_000

export type TransitionDeps = {
  readonly db: Database
  readonly clock: Clock
  readonly uuids: Uuids
  readonly wake: Wake
  /**
   * Called first in each transaction of `transition` and `transitionEach`; its rejection rolls that back and is the
   * rejection of the call. By it one who leads the loops moves nothing any more once another leads.
   */
  readonly fence?: (tx: Queryable) => Promise<void>
}

/** Why a transition happens: who asked, in one word why, and in words what failed if something did. */
export type Cause = { readonly actor: Actor; readonly code: CauseCode; readonly message?: string | null }
export const SYSTEM: Actor = { kind: 'system', code: 'sandyard', label: 'Sandyard' }

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
  readonly outcome?: Outcome
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

/** Moves a sandbox in a transaction of its own and wakes whoever waits for it. May be repeated: the second is stale. */
export async function transition(deps: TransitionDeps, request: Transition): Promise<TransitionAnswer> {
  const topics: string[] = []
  const answer = await deps.db.transaction('system', async (tx) => {
    topics.length = 0
    await deps.fence?.(tx)
    return transitionIn(deps, { tx, topics }, request)
  })
  deps.wake.publish(topics)
  return answer
}

/** The same within a transaction that does more; the caller publishes `topics` after the commit. */
export async function transitionIn(
  deps: Pick<TransitionDeps, 'clock' | 'uuids'>,
  scope: { readonly tx: Queryable; readonly topics: string[] },
  request: Transition,
): Promise<TransitionAnswer> {
  const { tx, topics } = scope
  const row = await standings.lock(tx, request.sandbox_id)
  if (row === null || (row.is_hidden && request.event === 'start_admitted')) return { kind: 'absent' }
  const stale: TransitionAnswer = { kind: 'stale', status: row.status, run_id: row.run_id }
  if (request.run_id !== null && request.run_id !== row.run_id) return stale
  const status = nextStatus({ status: row.status, isPlaced: row.worker_id !== null }, request.event)
  if (status === null) return stale
  if (request.event === 'no_capacity' && row.status_reason === 'insufficient_capacity') return stale

  const now = deps.clock.now()
  const step: Step = { request, row, status, now, at: notBefore(now, row.latest_at) }
  let run_id = row.run_id
  let opened: Pick<standings.SandboxChange, 'run_id'> = {}
  if (request.event === 'placed' && !(await hasRoom(tx, request, step))) return stale
  if (row.mounts_volumes) {
    const refused = await refuseVolumes(tx, request, stale)
    if (refused !== null) return refused
  }
  if (request.event === 'start_admitted') {
    run_id = request.opens ?? asId<RunId>(deps.uuids.next())
    opened = { run_id }
    const refused = await openRun(tx, row, { id: run_id, sandbox_id: request.sandbox_id, opened_at: step.at })
    if (refused !== null) return refused
  }
  await standings.write(tx, {
    sandbox: { id: request.sandbox_id, change: { ...sandboxChange(step), ...opened } },
    run: run_id === null ? null : { id: run_id, change: runChange(step) },
    event: eventOf(deps, step, run_id),
  })
  if (isTerminal(status) && row.ephemeral && !row.is_hidden) {
    await sandboxes.hide(tx, request.sandbox_id, new Date(now.getTime() + EPHEMERAL_LINGER_MS))
  }

  topics.push(`sandbox:${request.sandbox_id}`)
  if (request.event === 'start_admitted') topics.push('pending')
  if (isTerminal(status)) topics.push('pending') // room came free
  const worker = request.worker?.id ?? row.worker_id
  if (worker !== null) topics.push(`worker:${worker}`)
  return { kind: 'moved', status, run_id }
}

/** A placement was chosen by a picture of the fleet; whether the worker has that room is settled in its own transaction. */
async function hasRoom(tx: Queryable, { worker }: Transition, { row, now }: Step): Promise<boolean> {
  if (worker === undefined) return true
  const { vcpus, memory_mib } = row
  const [fits] = await rooms.reserve(tx, [{ worker_id: worker.id, vcpus, memory_mib }], now)
  return fits === true
}

/** A start needs its volumes active, a placement needs them on that worker; either is settled in its own transaction. */
async function refuseVolumes(
  tx: Queryable,
  { event, sandbox_id, worker }: Transition,
  stale: TransitionAnswer,
): Promise<TransitionAnswer | null> {
  if (event === 'start_admitted' && (await volumeMounts.hold(tx, sandbox_id)).length > 0)
    return { kind: 'volumes_gone', names: await volumeMounts.lostNames(tx, sandbox_id) }
  if (event !== 'placed' || worker === undefined) return null
  return (await volumeMounts.settleAll(tx, sandbox_id, worker.id)) ? null : stale
}

type Step = {
  readonly request: Transition
  readonly row: standings.StandingRow
  readonly status: SandboxStatus
  readonly now: Date
  /** What is written of the run and of its sandbox. */
  readonly at: Date
}

/** Opens a run, or says why the organization may not. The sandbox is locked; its organization is, if it must count. */
async function openRun(
  tx: Queryable,
  row: standings.StandingRow,
  run: Pick<standings.NewRun, 'id' | 'sandbox_id' | 'opened_at'>,
): Promise<TransitionAnswer | null> {
  const { org_id, vcpus, memory_mib, disk_size_mib, ephemeral } = row
  const opened = { ...run, org_id, vcpus, memory_mib, disk_size_mib, ephemeral }
  if (await standings.openRun(tx, opened, { isJudged: false })) return null
  await orgs.lock(tx, org_id)
  const standing = await quotas.standing(tx, org_id, { now: run.opened_at, counts: 'decisive' })
  const verdict = judge(standing, { ...opened, creates: false, starts: true, max_duration_secs: null })
  if (verdict !== null) return { kind: 'refused', refusal: verdict, slug: standing.slug }
  await standings.openRun(tx, opened, { isJudged: true })
  return null
}

function runChange({ request, row, status, at }: Step): standings.RunChange {
  if (request.event === 'placed' && request.worker !== undefined) return { worker_id: request.worker.id, placed_at: at }
  if (request.event === 'no_capacity') return { waits_since: at }
  if (status === 'running') {
    const limit = longestRunSecs(row)
    return {
      started_at: at,
      ...(limit === null ? {} : { deadline_at: new Date(at.getTime() + limit * 1000) }),
      ...(row.disk_size_mib === null ? diskOf(request.facts) : {}),
    }
  }
  if (status === 'stopping') return { stop_requested_at: at, stop_cause: request.cause.code }
  if (!isTerminal(status)) return {}
  return {
    ended_at: at,
    outcome: request.outcome ?? { kind: request.event },
    ...(request.event === 'stop_requested' ? { stop_requested_at: at, stop_cause: request.cause.code } : {}),
  }
}

/** How long a run may last: what the sandbox asks for or what its organization allows, whichever ends first. */
function longestRunSecs({ max_duration_secs, max_uptime_minutes }: standings.StandingRow): number | null {
  const uptimeSecs = max_uptime_minutes === null ? null : max_uptime_minutes * 60
  if (max_duration_secs === null || uptimeSecs === null) return max_duration_secs ?? uptimeSecs
  return Math.min(max_duration_secs, uptimeSecs)
}

/** The size of the disk that the worker chose; it is metered. */
function diskOf(facts: Transition['facts']): Pick<standings.RunChange, 'disk_mib'> {
  const told = Number(facts?.['disk_size_mib'])
  return Number.isInteger(told) && told > 0 && told <= INT32_MAX ? { disk_mib: told } : {}
}

function sandboxChange({ request, status, at }: Step): standings.SandboxChange {
  return {
    status,
    status_reason: REASON_AFTER[request.event] ?? null,
    ...(status === 'failed' ? { last_failure_message: request.cause.message ?? 'failed' } : {}),
    ...(status === 'running' ? { started_at: at } : {}),
    ...(request.event === 'start_admitted' ? { stopped_at: null } : {}),
    ...(isTerminal(status) ? { stopped_at: at } : {}),
    ...(request.event === 'placed' && request.worker !== undefined ? { home_worker_id: request.worker.id } : {}),
    ...(status === 'running' || isTerminal(status) ? { forget_registry_secret: true } : {}),
  }
}

/** Why a sandbox still waits for a place; a placed one waits for none. */
const REASON_AFTER: Partial<Record<TransitionEvent, StatusReason>> = {
  start_admitted: 'scheduling',
  no_capacity: 'insufficient_capacity',
}

/** A wall clock may step back, and those of two replicas differ; what is metered of a sandbox's runs may not overlap. */
function notBefore(now: Date, start: Date | null): Date {
  return start !== null && start > now ? start : now
}

/** The audit event of a transition: each leaves one. */
function eventOf(
  deps: Pick<TransitionDeps, 'uuids'>,
  { request, row, status, now }: Step,
  run_id: RunId | null,
): NewEvent {
  const event_type = eventTypeOf(request.event, status)
  const { cause, worker, facts } = request
  return {
    id: deps.uuids.next(),
    org_id: row.org_id,
    timestamp: now,
    event_type,
    sandbox_id: request.sandbox_id,
    actor: cause.actor,
    payload: {
      sandbox_id: request.sandbox_id,
      name: row.name,
      cause: cause.code,
      ...(run_id === null ? {} : { run_id }),
      ...(cause.message === undefined || cause.message === null ? {} : { message: cause.message }),
      ...(worker === undefined ? {} : { worker: worker.name }),
      ...(facts === undefined ? {} : { facts }),
    },
  }
}

function eventTypeOf(event: TransitionEvent, status: SandboxStatus): TransitionEventType {
  if (event === 'placed') return 'sandbox_placed'
  if (event === 'no_capacity') return 'sandbox_waiting'
  return EVENT_OF_STATUS[status]
}

type TransitionEventType = 'sandbox_placed' | 'sandbox_waiting' | (typeof EVENT_OF_STATUS)[SandboxStatus]

/** No transition leads to `created`. */
const EVENT_OF_STATUS = {
  created: 'sandbox_starting',
  starting: 'sandbox_starting',
  running: 'sandbox_running',
  stopping: 'sandbox_stopping',
  stopped: 'sandbox_stopped',
  failed: 'sandbox_failed',
} as const satisfies Record<SandboxStatus, string>

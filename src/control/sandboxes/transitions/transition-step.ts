/** Computes the changes and writes of a transition as plain values. `transition.ts` reads and writes the rows. */
import type { Actor } from '../../../domain/orgs/caller.ts'
import type { QuotaRefusal } from '../../../domain/orgs/quota.ts'
import type { RunOutcome } from '../../../domain/sandboxes/run.ts'
import { describePhases, type MeasuredPhase } from '../../../domain/sandboxes/start-phases.ts'
import {
  isTerminal,
  nextStatus,
  type CauseCode,
  type SandboxStatus,
  type StatusReason,
  type TransitionEvent,
} from '../../../domain/sandboxes/lifecycle.ts'
import { asId, type RunId, type SandboxId, type WorkerId } from '../../../domain/ids.ts'
import { isIsolationLevel, ISOLATION_LEVEL_FACT } from '../../../domain/isolation.ts'
import type { PublishedPort } from '../../../domain/spec/published-ports.ts'
import { runEnd } from './run-end.ts'
import { hasGivenUp, messageOf, restartChange } from './restart-step.ts'
import { INT32_MAX } from '../../../domain/requests/request-bounds.ts'
import type { Uuids } from '../../../lib/uuid.ts'
import type { NewEvent } from '../../../store/events/events.ts'
import type {
  RunChange,
  SandboxChange,
  SandboxStateRow,
  TransitionWrite,
} from '../../../store/sandboxes/sandbox-state-rows.ts'
import { PLACEMENT_TOPIC, sandboxTopic, workerTopic } from '../../topics.ts'

/** Why a transition happens: who caused it, a cause code, and what failed, if anything did. */
export type TransitionCause = { readonly actor: Actor; readonly code: CauseCode; readonly message?: string | null }

/** One event for the state machine of a sandbox. */
export type TransitionRequest = {
  readonly sandbox_id: SandboxId
  /**
   * The run that the event is about. The request is stale when another run is open. Null: the event applies to any open
   * run.
   */
  readonly run_id: RunId | null
  readonly event: TransitionEvent
  readonly cause: TransitionCause
  /** With `start_admitted`: the id of the run to open, which must be unused. If absent, an id is generated. */
  readonly opens?: RunId
  /** With `start_admitted`: the span of the request, as a `traceparent`, if it is traced. */
  readonly traceParent?: string
  /** With `placed`: the chosen worker, and the ports that the run publishes there. */
  readonly worker?: { readonly id: WorkerId; readonly name: string; readonly ports?: readonly PublishedPort[] }
  /** With an event that ends a run: the outcome that the worker reports. */
  readonly outcome?: RunOutcome
  /** With an event that ends a run: how long it ran by its worker's clock, in milliseconds. */
  readonly ran_ms?: number
  /** With `worker_running` and `worker_start_failed`: how the start went, as the worker measured it. */
  readonly start?: MeasuredStart
  /** With `worker_running`: what the driver reported about the run. The audit event contains it. */
  readonly facts?: Readonly<Record<string, string>>
}

/** A start that a worker measured, and the driver that did it. */
export type MeasuredStart = {
  readonly driver: string
  readonly phases: readonly MeasuredPhase[]
  /** When the start began, by the clock of this process. Absent: the worker did not report how long ago that was. */
  readonly beganAt?: Date
}

export type TransitionAnswer =
  | { readonly kind: 'moved'; readonly status: SandboxStatus; readonly run_id: RunId | null }
  /** The event does not apply to the current state of the sandbox. */
  | { readonly kind: 'stale'; readonly status: SandboxStatus; readonly run_id: RunId | null }
  | { readonly kind: 'refused'; readonly refusal: QuotaRefusal; readonly slug: string }
  /** The sandbox can't start because it mounts deleted volumes; `names` lists them. */
  | { readonly kind: 'volumes_gone'; readonly names: readonly string[] }
  | { readonly kind: 'absent' }

/** A transition that applies: the request, the current row of the sandbox, and its next status. */
export type TransitionStep = {
  readonly request: TransitionRequest
  readonly row: SandboxStateRow
  readonly status: SandboxStatus
  /** The open run, or the run that the step opens. */
  readonly run_id: RunId | null
  readonly now: Date
  /**
   * The time to write to the run and the sandbox: `now`, but never earlier than the latest time of the sandbox's runs.
   */
  readonly at: Date
}

/**
 * Resolves a request against the current state of its sandbox: to the step to take, or to the answer if no step
 * applies.
 */
export function resolveStep(
  deps: { readonly uuids: Uuids },
  {
    request,
    row,
    now,
  }: { readonly request: TransitionRequest; readonly row: SandboxStateRow | undefined; readonly now: Date },
): TransitionStep | TransitionAnswer {
  const isStart = request.event === 'start_admitted'
  if (row === undefined || (row.is_hidden && isStart)) return { kind: 'absent' }
  const isToRestart = row.restart_at !== null
  const endsWait = isToRestart && request.event === 'stop_requested' && request.run_id === row.latest_run_id
  const isAboutRun = request.run_id === row.run_id || endsWait
  if (request.run_id !== null && !isAboutRun) return staleAnswer(row)
  // A client may have stopped or started the sandbox since the loop read that its restart is due.
  if (request.cause.code === 'restart_policy' && (row.restart_at === null || row.restart_at > now))
    return staleAnswer(row)
  const isDrained = row.stop_cause === 'drained' && request.cause.code === 'requested'
  const state = { status: row.status, isPlaced: row.worker_id !== null, isToRestart, isDrained }
  const status = nextStatus(state, request.event)
  if (status === null) return staleAnswer(row)
  if (request.event === 'no_capacity' && row.status_reason === 'insufficient_capacity') return staleAnswer(row)
  return {
    request,
    row,
    status,
    run_id: isStart ? (request.opens ?? asId<RunId>(deps.uuids.next())) : row.run_id,
    now,
    at: notBefore(now, row.latest_at),
  }
}

/** The answer to a request that does not apply to the current state of the sandbox. */
export function staleAnswer({ status, run_id }: SandboxStateRow): TransitionAnswer {
  return { kind: 'stale', status, run_id }
}

/** The writes of a step: changes of the sandbox and its run, and the audit event. */
export function writesOf(deps: { readonly uuids: Uuids }, step: TransitionStep): TransitionWrite {
  const { request, run_id } = step
  return {
    sandbox: { id: request.sandbox_id, change: sandboxChange(step) },
    run: run_id === null ? null : { id: run_id, change: runChange(step) },
    event: eventOf(deps, step, run_id),
  }
}

/** The topics to notify after a step. */
export function topicsToNotify({ request, row, status }: TransitionStep): readonly string[] {
  const worker = request.worker?.id ?? row.worker_id
  return [
    sandboxTopic(request.sandbox_id),
    ...(request.event === 'start_admitted' || isTerminal(status) ? [PLACEMENT_TOPIC] : []), // an end frees capacity
    ...(worker === null ? [] : [workerTopic(worker)]),
  ]
}

function runChange({ request, row, status, at }: TransitionStep): RunChange {
  if (request.event === 'placed' && request.worker !== undefined) {
    const { id: worker_id, ports } = request.worker
    return { worker_id, placed_at: at, ...(ports === undefined ? {} : { ports }) }
  }
  if (request.event === 'no_capacity') return { waits_since: at }
  if (status === 'running') {
    const limit = longestRunSecs(row)
    return {
      started_at: at,
      ...(limit === null ? {} : { deadline_at: new Date(at.getTime() + limit * 1000) }),
      ...(row.disk_size_mib === null ? diskOf(request.facts) : {}),
    }
  }
  if (status === 'stopping') {
    const stop_cause = request.cause.code
    return row.status === 'stopping' ? { stop_cause } : { stop_requested_at: at, stop_cause }
  }
  if (!isTerminal(status)) return {}
  return {
    ended_at: runEnd(row.started_at, at, request.ran_ms),
    outcome: request.outcome ?? { kind: request.event },
    ...(request.event === 'stop_requested' ? { stop_requested_at: at, stop_cause: request.cause.code } : {}),
  }
}

/**
 * The longest time that a run may last, in seconds: the limit of the sandbox or of its organization, whichever is
 * shorter.
 */
function longestRunSecs({ max_duration_secs, max_uptime_minutes }: SandboxStateRow): number | null {
  const uptimeSecs = max_uptime_minutes === null ? null : max_uptime_minutes * 60
  if (max_duration_secs === null || uptimeSecs === null) return max_duration_secs ?? uptimeSecs
  return Math.min(max_duration_secs, uptimeSecs)
}

/** The disk size that the worker chose and reported. The usage of the disk is metered by this size. */
function diskOf(facts: TransitionRequest['facts']): Pick<RunChange, 'disk_mib'> {
  const sizeMib = Number(facts?.['disk_size_mib'])
  return Number.isInteger(sizeMib) && sizeMib > 0 && sizeMib <= INT32_MAX ? { disk_mib: sizeMib } : {}
}

/** The isolation that the worker reported about the run. */
function isolationOf(facts: TransitionRequest['facts']): Pick<SandboxChange, 'isolation'> {
  const level = facts?.[ISOLATION_LEVEL_FACT]
  return level !== undefined && isIsolationLevel(level) ? { isolation: level } : {}
}

function sandboxChange(step: TransitionStep): SandboxChange {
  const { request, row, status, run_id, at } = step
  return {
    status,
    ...restartChange(step),
    status_reason: REASON_AFTER[request.event] ?? null,
    ...(status === 'failed' || hasGivenUp(step) ? { last_failure_message: messageOf(step) ?? 'failed' } : {}),
    ...(status === 'running' ? { started_at: at, ...isolationOf(request.facts) } : {}),
    ...(request.event === 'start_admitted' && run_id !== null ? { run_id, stopped_at: null } : {}),
    // Without a run, the step ends the wait for a restart: the latest run ended before.
    ...(isTerminal(status) && run_id !== null
      ? { stopped_at: notBefore(at, runEnd(row.started_at, at, request.ran_ms)) }
      : {}),
    ...(request.event === 'placed' && request.worker !== undefined ? { home_worker_id: request.worker.id } : {}),
    ...(status === 'running' || isTerminal(status) ? { forget_registry_secret: true } : {}),
  }
}

/** The status reason of a sandbox that still waits to be placed, by its latest event. */
const REASON_AFTER: Partial<Record<TransitionEvent, StatusReason>> = {
  start_admitted: 'scheduling',
  no_capacity: 'insufficient_capacity',
}

/**
 * Returns the later of `now` and `start`. Wall clocks step back, and those of two replicas differ. Without this
 * function, the metered intervals of a sandbox's runs could overlap.
 */
function notBefore(now: Date, start: Date | null): Date {
  return start !== null && start > now ? start : now
}

/** The audit event of a transition; every transition leaves exactly one. */
function eventOf(deps: { readonly uuids: Uuids }, step: TransitionStep, run_id: RunId | null): NewEvent {
  const { request, row, status, now } = step
  const event_type = eventTypeOf(request.event, status)
  const { cause, worker, facts, start } = request
  const message = messageOf(step)
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
      ...(message === null ? {} : { message }),
      ...(worker === undefined ? {} : { worker: worker.name }),
      ...(facts === undefined ? {} : { facts }),
      ...(start === undefined ? {} : describePhases(start.phases)),
    },
  }
}

function eventTypeOf(event: TransitionEvent, status: SandboxStatus): TransitionEventType {
  if (event === 'placed') return 'sandbox_placed'
  if (event === 'no_capacity') return 'sandbox_waiting'
  return EVENT_OF_STATUS[status]
}

type TransitionEventType = 'sandbox_placed' | 'sandbox_waiting' | (typeof EVENT_OF_STATUS)[SandboxStatus]

/**
 * The event of a transition, by the new status. The entry of `created` is never used, because no transition leads to
 * that status.
 */
const EVENT_OF_STATUS = {
  created: 'sandbox_starting',
  starting: 'sandbox_starting',
  running: 'sandbox_running',
  stopping: 'sandbox_stopping',
  stopped: 'sandbox_stopped',
  failed: 'sandbox_failed',
} as const satisfies Record<SandboxStatus, string>

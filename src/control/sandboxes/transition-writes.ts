/** What each transition writes, as plain values: the pure half of `transition.ts`. */
import {
  isTerminal,
  nextStatus,
  type SandboxStatus,
  type StatusReason,
  type TransitionEvent,
} from '../../domain/sandboxes/lifecycle.ts'
import { asId, type RunId } from '../../domain/ids.ts'
import { INT32_MAX } from '../../domain/requests/request-bounds.ts'
import type { Uuids } from '../../lib/uuid.ts'
import type { NewEvent } from '../../store/events/events.ts'
import type {
  RunChange,
  SandboxChange,
  SandboxStateRow,
  TransitionWrite,
} from '../../store/sandboxes/sandbox-state-rows.ts'
import type { Transition, TransitionAnswer } from './transition.ts'

/** A transition that applies: what is asked, where the sandbox stands, and where it goes. */
export type TransitionStep = {
  readonly request: Transition
  readonly row: SandboxStateRow
  readonly status: SandboxStatus
  /** The run that it is about: the open one, or the one that it opens. */
  readonly run_id: RunId | null
  readonly now: Date
  /** What is written of the run and of its sandbox. */
  readonly at: Date
}

/** Where a request leads from where its sandbox stands, or why it leads nowhere. */
export function resolveStep(
  deps: { readonly uuids: Uuids },
  {
    request,
    row,
    now,
  }: { readonly request: Transition; readonly row: SandboxStateRow | undefined; readonly now: Date },
): TransitionStep | TransitionAnswer {
  const isStart = request.event === 'start_admitted'
  if (row === undefined || (row.is_hidden && isStart)) return { kind: 'absent' }
  if (request.run_id !== null && request.run_id !== row.run_id) return staleAnswer(row)
  const status = nextStatus({ status: row.status, isPlaced: row.worker_id !== null }, request.event)
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

/** The answer to what does not apply where a sandbox stands. */
export function staleAnswer({ status, run_id }: SandboxStateRow): TransitionAnswer {
  return { kind: 'stale', status, run_id }
}

/** What a step writes: the sandbox, its run and the audit event. */
export function writesOf(deps: { readonly uuids: Uuids }, step: TransitionStep): TransitionWrite {
  const { request, run_id } = step
  return {
    sandbox: { id: request.sandbox_id, change: sandboxChange(step) },
    run: run_id === null ? null : { id: run_id, change: runChange(step) },
    event: eventOf(deps, step, run_id),
  }
}

/** Who waits for what a step changes. */
export function topicsOf({ request, row, status }: TransitionStep): readonly string[] {
  const worker = request.worker?.id ?? row.worker_id
  return [
    `sandbox:${request.sandbox_id}`,
    ...(request.event === 'start_admitted' || isTerminal(status) ? ['pending'] : []), // at an end, room came free
    ...(worker === null ? [] : [`worker:${worker}`]),
  ]
}

function runChange({ request, row, status, at }: TransitionStep): RunChange {
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
function longestRunSecs({ max_duration_secs, max_uptime_minutes }: SandboxStateRow): number | null {
  const uptimeSecs = max_uptime_minutes === null ? null : max_uptime_minutes * 60
  if (max_duration_secs === null || uptimeSecs === null) return max_duration_secs ?? uptimeSecs
  return Math.min(max_duration_secs, uptimeSecs)
}

/** The size of the disk that the worker chose; it is metered. */
function diskOf(facts: Transition['facts']): Pick<RunChange, 'disk_mib'> {
  const told = Number(facts?.['disk_size_mib'])
  return Number.isInteger(told) && told > 0 && told <= INT32_MAX ? { disk_mib: told } : {}
}

function sandboxChange({ request, status, run_id, at }: TransitionStep): SandboxChange {
  return {
    status,
    status_reason: REASON_AFTER[request.event] ?? null,
    ...(status === 'failed' ? { last_failure_message: request.cause.message ?? 'failed' } : {}),
    ...(status === 'running' ? { started_at: at } : {}),
    ...(request.event === 'start_admitted' && run_id !== null ? { run_id, stopped_at: null } : {}),
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
  deps: { readonly uuids: Uuids },
  { request, row, status, now }: TransitionStep,
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

/**
 * What a worker's sync does: its report moves the sandboxes whose runs it holds, and the answer says all that is
 * wanted of it. Both halves are idempotent, so that a repeated or late sync harms nothing.
 */
import { createHash } from 'node:crypto'
import type {
  RunVolume,
  ObservedRun,
  StreamTicket,
  SyncAnswer,
  SyncRequest,
  DesiredRun,
} from '../../contract/workers/worker-protocol.ts'
import { isCancelledStart } from '../../domain/workers/decide.ts'
import type { WorkerId } from '../../domain/ids.ts'
import { WORKER_LEASE_MS } from '../../domain/workers/lease.ts'
import { transitionOfOutcome } from '../../domain/sandboxes/outcome.ts'
import type { RunOutcome } from '../../domain/sandboxes/run.ts'
import { isUnavailable } from '../../store/postgres/database.ts'
import * as runs from '../../store/sandboxes/runs.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'
import * as workers from '../../store/workers/workers.ts'
import type { BaseDeps, ControlSettings } from '../deps.ts'
import type { ReportRecorder } from './take-plain.ts'
import { findRegistryAuth, type CredentialLookups } from '../orgs/registry-auth.ts'
import { answerVolumes, NO_VOLUMES_VERSION, recordVolumes, volumesOfRuns } from './sync-volumes.ts'
import { transitionAll } from '../sandboxes/transition-batches.ts'
import type { TransitionRequest } from '../sandboxes/transition-step.ts'
import { SYSTEM_ACTOR } from '../../domain/orgs/caller.ts'
import { PENDING_TOPIC, REAP_VOLUMES_TOPIC } from '../topics.ts'

/** What serving a worker's sync needs. */
export type SyncDeps = Pick<BaseDeps, 'db' | 'clock' | 'uuids' | 'notifications' | 'seal' | 'log'> &
  ReportRecorder & { readonly settings: Pick<ControlSettings, 'defaultRegistry' | 'stopGraceMs'> }

/** The tickets of streams that wait for a worker to dial in; `relay/` keeps them. */
export type Tickets = {
  openTickets(workerId: string): readonly StreamTicket[]
}

/**
 * Takes in what a worker sees: prolongs its lease and moves the sandboxes that its runs tell of. A report that a later
 * one has overtaken moves nothing: null. A sandbox that can't be moved does not keep the others from it.
 */
export async function recordReport(
  deps: SyncDeps,
  worker: WorkerId,
  report: SyncRequest,
): Promise<RecordedReport | null> {
  const taken =
    report.volumes === null
      ? await deps.recordReportInBatch(report)
      : await recordReportWithVolumes(deps, worker, report)
  if (taken === null) return null
  deps.notifications.publish([
    ...(taken.makes_room ? [PENDING_TOPIC] : []),
    ...(taken.has_emptied ? [REAP_VOLUMES_TOPIC] : []),
  ])
  const seen = new Map(report.seen.map((run) => [run.run_id, run]))
  const moves = taken.open.flatMap((run) => {
    const move = transitionOf(run, seen.get(run.run_id))
    return move === null ? [] : [{ sandbox_id: run.sandbox_id, run_id: run.run_id, ...move }]
  })
  await transitionAll(deps, moves)
  const { draining_since, drain_deadline_at } = taken
  const told = draining_since === null ? {} : { drain: { deadline_at: drain_deadline_at?.toISOString() ?? null } }
  return { ...taken, told, hasMoved: moves.length > 0 || taken.has_emptied }
}

/** One transaction: what is open is read while no other report of this worker can be taken in. */
async function recordReportWithVolumes(deps: SyncDeps, worker: WorkerId, report: SyncRequest) {
  const now = deps.clock.now()
  const leaseExpiresAt = new Date(now.getTime() + WORKER_LEASE_MS)
  const { capacity, driver, storage, life, seq } = report
  return deps.db.transaction('system', async (tx) => {
    const renewed = await workers.renew(tx, worker, { life, seq, capacity, driver, storage, now, leaseExpiresAt })
    if (renewed === null) return null
    const has_emptied = await recordVolumes(tx, worker, { report, now })
    return { ...renewed, has_emptied, open: await runs.ofWorker(tx, worker), has_more: true, print: null }
  })
}

/** A report that was taken in. */
export type RecordedReport = {
  readonly told: WorkerNotice
  /** Whether that changed anything beside the lease. */
  readonly hasMoved: boolean
  readonly open: readonly runs.OpenRunOfWorker[]
  /** Whether there may be more to tell than `open` says. */
  readonly has_more: boolean
  /** What the next report that says the same is to be compared with; null: nothing. */
  readonly print: string | null
}

/**
 * The answer to a report as it was taken in, without another look at the database; null when one is needed, because
 * something moved, is wanted, or may be told.
 */
export function answerAtOnce(tickets: Tickets, report: SyncRequest, taken: RecordedReport): SyncAnswer | null {
  if (taken.hasMoved || taken.has_more || desiredVersionOf(taken.open) !== report.known_version) return null
  if (report.known_volumes_version !== NO_VOLUMES_VERSION) return null
  return emptyAnswer(tickets, report.worker_id, report)
}

/** What the worker is told of itself with the answer to its report. */
export type WorkerNotice = Pick<SyncAnswer, 'drain'>

type Move = Omit<TransitionRequest, 'sandbox_id' | 'run_id'>

/** What the worker's sight of a run means for its sandbox; null when nothing. */
function transitionOf(run: runs.OpenRunOfWorker, seen: ObservedRun | undefined): Move | null {
  // A worker that has not begun a start says nothing of it, nor of its stop until it knows that this one is wanted: then it
  // says that the run is over. One that held the run and lost it must not hide that.
  if (seen === undefined)
    return run.status === 'running'
      ? endTransitionOf(run, { kind: 'lost', message: 'the worker no longer holds this run' })
      : null
  if (seen.phase === 'ended') {
    if (run.status !== 'running' && isCancelledStart(seen.outcome)) return null // the worker begins it anew, or says that it is stopped
    return endTransitionOf(
      run,
      seen.outcome ?? { kind: 'lost', message: 'the worker reports an end without its outcome' },
    )
  }
  if (seen.phase === 'running' && run.status === 'starting') {
    return { event: 'worker_running', facts: seen.facts ?? {}, cause: { actor: SYSTEM_ACTOR, code: 'worker_report' } }
  }
  if (seen.is_idle_expired === true && run.status === 'running') {
    return { event: 'stop_requested', cause: { actor: SYSTEM_ACTOR, code: 'idle_timeout' } }
  }
  return null
}

function endTransitionOf(run: runs.OpenRunOfWorker, outcome: RunOutcome): Move {
  if (run.status === 'stopping') {
    return { event: 'worker_stopped', outcome, cause: { actor: SYSTEM_ACTOR, code: run.stop_cause ?? 'worker_report' } }
  }
  const { event, message } = transitionOfOutcome(outcome)
  return { event, outcome, cause: { actor: SYSTEM_ACTOR, code: 'workload_ended', message } }
}

/** The whole of what is wanted of a worker now. What it holds already by version is not sent again. */
export async function makeAnswer(
  deps: SyncDeps,
  tickets: Tickets,
  worker: WorkerId,
  report: SyncRequest,
): Promise<SyncAnswer> {
  const [[open, discard], volumes] = await Promise.all([
    deps.db.asSystem(async (q) => {
      const gone = report.stored.length === 0 ? [] : await sandboxes.findDeleted(q, report.stored)
      return [await runs.ofWorker(q, worker), gone] as const
    }),
    deps.db.asSystem((q) => answerVolumes(q, worker, report)),
  ])
  const streams = tickets.openTickets(worker)
  const wanted_version = desiredVersionOf(open)
  if (wanted_version === report.known_version) return { wanted_version, wanted: null, discard, streams, ...volumes }
  const [orders, mounted] = await deps.db.asSystem(async (q) => {
    const found = await runs.assignmentsOf(q, worker)
    return [found, await volumesOfRuns(q, worker, found)]
  })
  const found: CredentialLookups = new Map()
  const wanted = await Promise.all(
    orders.map((order) => desiredRunOf(deps, order, { volumes: mounted.get(order.run_id) ?? [], found })),
  )
  return { wanted_version: desiredVersionOf(orders), wanted, discard, streams, ...volumes } // the version of what is sent, not of the look
}

/** What the worker said that it knows already. */
export type KnownByWorker = Pick<SyncRequest, 'known_version' | 'known_volumes_version' | 'dialled'>

/** The answer to a report that was overtaken: nothing is wanted anew. */
export function emptyAnswer(tickets: Tickets, worker: WorkerId, report: KnownByWorker): SyncAnswer {
  const { known_version, known_volumes_version } = report
  return {
    wanted_version: known_version ?? '',
    wanted: null,
    discard: [],
    streams: tickets.openTickets(worker),
    volumes_version: known_volumes_version ?? '',
    volumes: null,
    discard_volumes: [],
  }
}

/** Whether an answer tells the worker something that its report does not say already. */
export function hasNews(answer: SyncAnswer, report: Pick<KnownByWorker, 'dialled'>): boolean {
  const isDialled = new Set(report.dialled)
  return (
    answer.wanted !== null ||
    answer.volumes !== null ||
    answer.discard.length > 0 ||
    answer.streams.some(({ ticket }) => !isDialled.has(ticket))
  )
}

function desiredVersionOf(open: readonly Pick<runs.OpenRunOfWorker, 'run_id' | 'status'>[]): string {
  const hash = createHash('sha256')
  for (const run of open) hash.update(`${run.run_id} ${desiredStatusOf(run)}\n`)
  return hash.digest('base64url')
}

function desiredStatusOf(run: { readonly status: runs.OpenRunOfWorker['status'] }): DesiredRun['desired'] {
  return run.status === 'stopping' ? 'stopped' : 'running'
}

async function desiredRunOf(
  deps: SyncDeps,
  order: runs.RunAssignment,
  { volumes, found }: { readonly volumes: readonly RunVolume[]; readonly found: CredentialLookups },
): Promise<DesiredRun> {
  return {
    run_id: order.run_id,
    sandbox_id: order.sandbox_id,
    org_id: order.org_id,
    slug: order.slug,
    desired: desiredStatusOf(order),
    grace_ms: deps.settings.stopGraceMs,
    spec: order.spec,
    default_disk_max_mib: order.default_disk_max_mib,
    volumes,
    // Only a start pulls: the secret goes no further than it must.
    registry_auth: order.status === 'starting' ? await registryAuthOrNull(deps, order, found) : null,
  }
}

/** A credential that can't be opened, as after a change of the sealing key, fails its own pull and no other run. */
async function registryAuthOrNull(
  deps: SyncDeps,
  order: runs.RunAssignment,
  found: CredentialLookups,
): Promise<DesiredRun['registry_auth']> {
  try {
    return await findRegistryAuth(deps, order, found)
  } catch (error) {
    if (isUnavailable(error)) throw error
    deps.log.error({ error, sandbox_id: order.sandbox_id }, 'a registry credential could not be opened')
    return null
  }
}

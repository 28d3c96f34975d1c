/** The first half of a sync: records a worker's report and moves the sandboxes of the reported runs. */
import type { ObservedRun, SyncAnswer, SyncRequest } from '../../contract/workers/worker-protocol.ts'
import { transitionOfOutcome, type RunOutcome } from '../../domain/sandboxes/run.ts'
import type { WorkerId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { isCancelledStart } from '../../domain/workers/decide.ts'
import { WORKER_LEASE_MS } from '../../domain/workers/lease.ts'
import * as runs from '../../store/sandboxes/runs.ts'
import * as volumeReports from '../../store/volumes/volume-reports.ts'
import * as workers from '../../store/workers/workers.ts'
import { SYSTEM_ACTOR } from '../../domain/orgs/caller.ts'
import type { BaseDeps } from '../deps.ts'
import type { EventObserver } from '../sandboxes/transitions/transition.ts'
import { moveAll } from '../sandboxes/transitions/transition-batches.ts'
import type { TransitionRequest } from '../sandboxes/transitions/transition-step.ts'
import { PLACEMENT_TOPIC, REAP_VOLUMES_TOPIC } from '../topics.ts'
import { recordDiskPressure } from './record-disk-pressure.ts'
import { recordMemoryKills } from './record-memory-kills.ts'
import type { ReportRecorder } from './report-batches.ts'

export type RecordReportDeps = Pick<BaseDeps, 'db' | 'clock' | 'uuids' | 'notifications' | 'log'> &
  ReportRecorder &
  EventObserver & {
    /** Present if the report itself was not authenticated: the sender of an earlier report with the same credential. */
    readonly sender?: RememberedSender
  }

/** A worker that was authenticated by this credential for an earlier report. */
export type RememberedSender = {
  readonly credentialSha256: Buffer
  /** Looks up the worker that has the credential now. Rejects when there is none. */
  readonly authenticate: () => Promise<WorkerId>
}

/** A report whose claims are limited to the worker's bounds. */
export type BoundReport = SyncRequest & Pick<workers.WorkerReport, 'refused_claims'>

/** A report that was recorded. The worker's lease starts again at that moment. */
export type RecordedReport = {
  /** The notice about the worker itself, which every answer contains. */
  readonly notice: Pick<SyncAnswer, 'drain'>
  /** The open runs of the worker. Null if the worker knows their current state, so that no comparison is needed. */
  readonly open: readonly runs.OpenRunOfWorker[] | null
  /** Whether the answer may need more data than `open`, for example about volumes. */
  readonly has_more: boolean
  /** Whether the report moved a sandbox, or showed that the worker no longer stores a volume that is being deleted. */
  readonly hasMoved: boolean
  /** The worker's generation when `open` was read. Null if it is not known. */
  readonly generation: number | null
}

/**
 * Records a report. An unchanged report, from a worker for which there is no news, costs one row in a statement that
 * many reports share. Any other report prolongs the lease and moves sandboxes. A sandbox that can't be moved blocks no
 * other. Resolves with null, and writes nothing, when a later report was recorded before or the worker was removed. May
 * be repeated. Rejects when `authenticate` of a remembered sender rejects.
 */
export async function recordReport(deps: RecordReportDeps, report: BoundReport): Promise<RecordedReport | null> {
  const receivedAt = deps.clock.now()
  const { known_generation } = report
  if (known_generation !== null) {
    const credentialSha256 = deps.sender?.credentialSha256 ?? null
    const prolonged = await deps.reportBatches.prolongLease({ ...report, known_generation, credentialSha256 })
    if (prolonged !== null)
      return { notice: noticeOf(prolonged), open: null, has_more: false, hasMoved: false, generation: known_generation }
  }
  const recorded = await recordWhole(deps, report)
  if (recorded === null) return null
  const { open, has_more, has_emptied, generation } = recorded
  deps.notifications.publish([
    ...(recorded.adds_capacity ? [PLACEMENT_TOPIC] : []),
    ...(has_emptied ? [REAP_VOLUMES_TOPIC] : []),
  ])
  const observed = new Map(report.observed_runs.map((run) => [run.run_id, run]))
  const moves = open.flatMap((run) => {
    const reported = observed.get(run.run_id)
    const move = transitionOf(run, reported)
    if (move === null) return []
    const start = run.status === 'starting' ? measuredStart(report, reported, receivedAt) : {}
    return [{ sandbox_id: run.sandbox_id, run_id: run.run_id, ...move, ...start }]
  })
  await moveAll(deps, moves)
  await recordDiskPressure(deps, report.worker_id, { disk: report.disk, wasShort: recorded.is_disk_short })
  await recordMemoryKills(deps, open, report.observed_runs)
  return { notice: noticeOf(recorded), open, has_more, hasMoved: moves.length > 0 || has_emptied, generation }
}

/**
 * Records a report that is not just a heartbeat. The statement compares the credential of a remembered sender. If it writes
 * nothing, the sender is authenticated again, because the credential may be the reason.
 */
async function recordWhole(deps: RecordReportDeps, report: BoundReport) {
  const requireSender = async (): Promise<void> => {
    if (deps.sender !== undefined && (await deps.sender.authenticate()) !== report.worker_id)
      throw new Problem('invalid_api_key')
  }
  if (report.volumes !== null) {
    await requireSender()
    return recordWithVolumes(deps, report)
  }
  const credentialSha256 = deps.sender?.credentialSha256 ?? null
  const recorded = await deps.reportBatches.record({ ...report, credentialSha256 })
  if (recorded === null) await requireSender()
  return recorded
}

function noticeOf({ draining_since, drain_deadline_at }: workers.DrainState): RecordedReport['notice'] {
  return draining_since === null ? {} : { drain: { deadline_at: drain_deadline_at?.toISOString() ?? null } }
}

/**
 * Records a report with news about volumes and reads the worker's open runs, in one transaction. No other report of
 * this worker can therefore be recorded between the two.
 */
async function recordWithVolumes(deps: Pick<BaseDeps, 'db' | 'clock'>, report: BoundReport) {
  const now = deps.clock.now()
  const leaseExpiresAt = new Date(now.getTime() + WORKER_LEASE_MS)
  const { worker_id, storage } = report
  return deps.db.transaction('system', async (tx) => {
    const renewed = await workers.renew(tx, worker_id, { ...report, now, leaseExpiresAt })
    if (renewed === null) return null
    const from = { worker_id, is_shared: storage.is_shared }
    const { emptied } = await volumeReports.record(tx, from, { all: report.volumes, now })
    const open = await runs.ofWorker(tx, worker_id)
    return { ...renewed, has_emptied: emptied, open, has_more: true, generation: null }
  })
}

/** How the start of a reported run went, if the report says so. */
function measuredStart(
  { driver }: BoundReport,
  run: ObservedRun | undefined,
  receivedAt: Date,
): Pick<TransitionRequest, 'start'> {
  const { start_phases: phases = [], start_age_ms: ageMs } = run ?? {}
  if (phases.length === 0) return {}
  const began = ageMs === undefined ? {} : { beganAt: new Date(receivedAt.getTime() - ageMs) }
  return { start: { driver: driver.name, phases, ...began } }
}

type Move = Omit<TransitionRequest, 'sandbox_id' | 'run_id'>

/** The transition that a worker's report about a run causes. Null: the sandbox does not move. */
function transitionOf(run: runs.OpenRunOfWorker, observed: ObservedRun | undefined): Move | null {
  // A worker does not report a run whose start it has not begun. If such a run must stop, the worker reports it as
  // ended once an answer has told it so. Only a run that was running and is missing from the report is lost.
  if (observed === undefined)
    return run.status === 'running'
      ? endTransitionOf(run, { kind: 'lost', message: 'the worker no longer has this run' })
      : null
  if (observed.phase === 'ended') {
    if (run.status !== 'running' && isCancelledStart(observed.outcome)) return null // the worker will retry or report it stopped
    const { outcome, ran_ms } = observed
    const unknown = { kind: 'lost', message: 'the worker reported the end of the run without its outcome' } as const
    return { ...endTransitionOf(run, outcome ?? unknown), ...(ran_ms === undefined ? {} : { ran_ms }) }
  }
  if (observed.phase === 'running' && run.status === 'starting') {
    return {
      event: 'worker_running',
      facts: observed.facts ?? {},
      cause: { actor: SYSTEM_ACTOR, code: 'worker_report' },
    }
  }
  if (observed.is_idle_expired === true && run.status === 'running') {
    return { event: 'stop_requested', cause: { actor: SYSTEM_ACTOR, code: 'idle_timeout' } }
  }
  return null
}

function endTransitionOf(run: runs.OpenRunOfWorker, outcome: RunOutcome): Move {
  if (run.status === 'stopping') {
    return { event: 'worker_stopped', outcome, cause: { actor: SYSTEM_ACTOR, code: run.stop_cause ?? 'worker_report' } }
  }
  const { event, message } = transitionOfOutcome(outcome)
  // No workload ends with a start that failed: none began.
  const code = outcome.kind === 'start_failed' ? 'worker_report' : 'workload_ended'
  return { event, outcome, cause: { actor: SYSTEM_ACTOR, code, message } }
}

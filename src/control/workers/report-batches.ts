import type { SyncRequest } from '../../contract/workers/worker-protocol.ts'
import type { SandboxId, WorkerId } from '../../domain/ids.ts'
import { isLaterReport, WORKER_LEASE_MS, type ReportPosition } from '../../domain/workers/lease.ts'
import { makeBatch } from '../../lib/turns/batch.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Database } from '../../store/postgres/database.ts'
import type { Statement } from '../../store/postgres/session.ts'
import * as workerReports from '../../store/workers/worker-reports.ts'

/** A report, and what it claimed beyond the worker's bounds. */
type RecordableReport = SyncRequest & Pick<workerReports.ReportWithoutVolumes, 'refused_claims' | 'credentialSha256'>

/** Records reports that arrive together in one statement. Both functions resolve with null when nothing was written. */
export type ReportBatches = {
  /** Prolongs the lease of a worker whose report is unchanged and for which there is no news. */
  prolongLease(report: workerReports.UnchangedReport): Promise<workerReports.ProlongedLease | null>
  /** Records a report without news about volumes. Resolves with null when a later report was recorded before. */
  record(report: RecordableReport): Promise<workerReports.RecordedReportRow | null>
}

/** The dependency of use cases that record reports. */
export type ReportRecorder = { readonly reportBatches: ReportBatches }

const PROLONGED_MAX = 1_000
/**
 * The pause between two batches, in milliseconds. It is short compared to a lease of 30 s, and limits these batches to
 * 10 commits a second.
 */
const PROLONG_PAUSE_MS = 100
const RECORDED_MAX = 256
const RECORDS_IN_FLIGHT = 2

/** Makes the batches of one server process. */
export function makeReportBatches({ db, clock }: { readonly db: Database; readonly clock: Clock }): ReportBatches {
  type MakeStatement<Report> = (reports: readonly Report[], lease: workerReports.LeaseTimes) => Statement

  const commit =
    <Report extends ReportPosition & { readonly worker_id: WorkerId }, Row extends { readonly worker_id: WorkerId }>(
      makeStatement: MakeStatement<Report>,
    ) =>
    async (reports: readonly Report[]): Promise<readonly (Row | null)[]> => {
      const now = clock.now()
      const latest = latestOfEach(reports)
      const lease = { now, expiresAt: new Date(now.getTime() + WORKER_LEASE_MS) }
      const { rows } = await db.commitStatement<Row>('system', makeStatement([...latest.values()], lease))
      const byWorker = new Map(rows.map((row) => [row.worker_id, row]))
      return reports.map((report) =>
        latest.get(report.worker_id) === report ? (byWorker.get(report.worker_id) ?? null) : null,
      )
    }

  return {
    prolongLease: makeBatch({
      run: commit<workerReports.UnchangedReport, workerReports.ProlongedLease>(workerReports.prolongLeases),
      groupOf: () => 'all',
      maxItems: PROLONGED_MAX,
      maxInFlight: 1,
      pauseAfter: () => clock.sleep(PROLONG_PAUSE_MS),
    }),
    record: makeBatch({
      run: commit<RecordableReport, workerReports.RecordedReportRow>((reports, lease) =>
        workerReports.recordReports(
          reports.map((report) => ({ ...report, stopped_sandboxes: stoppedSandboxesOf(report) })),
          lease,
        ),
      ),
      groupOf: () => 'all',
      maxItems: RECORDED_MAX,
      maxInFlight: RECORDS_IN_FLIGHT,
    }),
  }
}

/** Keeps only the latest report of each worker. The earlier ones need not be recorded. */
function latestOfEach<Report extends ReportPosition & { readonly worker_id: WorkerId }>(
  reports: readonly Report[],
): ReadonlyMap<WorkerId, Report> {
  const latest = new Map<WorkerId, Report>()
  for (const report of reports) {
    const other = latest.get(report.worker_id)
    if (other === undefined || isLaterReport(report, other)) latest.set(report.worker_id, report)
  }
  return latest
}

/** Sandboxes whose writable layer is stored on a worker that is not running them. */
function stoppedSandboxesOf({
  observed_runs,
  stored_sandboxes,
}: Pick<SyncRequest, 'observed_runs' | 'stored_sandboxes'>): readonly SandboxId[] {
  const running = new Set(observed_runs.map(({ sandbox_id }) => sandbox_id))
  return stored_sandboxes.filter((sandbox) => !running.has(sandbox))
}

import type { SyncRequest } from '../../contract/workers/worker-protocol.ts'
import type { SandboxId, WorkerId } from '../../domain/ids.ts'
import { WORKER_LEASE_MS } from '../../domain/workers/lease.ts'
import { isLaterReport } from '../../domain/workers/report-order.ts'
import { makeBatch } from '../../lib/batch.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Database } from '../../store/postgres/database.ts'
import * as workerReports from '../../store/workers/worker-reports.ts'

/** Takes in a report that says nothing new of volumes, with others of the same moment; null when it was overtaken. */
export type RecordReportInBatch = (report: SyncRequest) => Promise<workerReports.RecordedReportRow | null>

const BATCH_MAX = 256
const BATCHES_AT_ONCE = 2

export type ReportRecorder = { readonly recordReportInBatch: RecordReportInBatch }

/** Makes the part that takes reports of many workers in together. */
export function makeRecordReportInBatch({
  db,
  clock,
}: {
  readonly db: Database
  readonly clock: Clock
}): RecordReportInBatch {
  return makeBatch<SyncRequest, workerReports.RecordedReportRow | null>({
    run: async (reports) => {
      const now = clock.now()
      const expiresAt = new Date(now.getTime() + WORKER_LEASE_MS)
      // Of two reports of one worker the later one counts; the other was overtaken on its way.
      const last = new Map<WorkerId, SyncRequest>()
      for (const report of reports) {
        const other = last.get(report.worker_id)
        if (other === undefined || isLaterReport(report, other)) last.set(report.worker_id, report)
      }
      const plain = [...last.values()].map((report) => ({ ...report, resting: layersWithoutRunOf(report) }))
      const { rows } = await db.commitStatement<workerReports.RecordedReportRow>(
        'system',
        workerReports.recording(plain, { now, expiresAt }),
      )
      const taken = new Map(rows.map((row) => [row.worker_id, row]))
      return reports.map((report) =>
        last.get(report.worker_id) === report ? (taken.get(report.worker_id) ?? null) : null,
      )
    },
    groupOf: () => 'all',
    maxItems: BATCH_MAX,
    maxInFlight: BATCHES_AT_ONCE,
  })
}

/** Sandboxes whose writable layer lies on a worker and that it does not run. */
export function layersWithoutRunOf({ seen, stored }: Pick<SyncRequest, 'seen' | 'stored'>): readonly SandboxId[] {
  const running = new Set(seen.map(({ sandbox_id }) => sandbox_id))
  return stored.filter((sandbox) => !running.has(sandbox))
}

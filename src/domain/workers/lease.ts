/** The leases of workers, and the order of the reports that extend a lease. */

/** How long a worker may go without a sync before its runs are declared lost, in milliseconds. */
export const WORKER_LEASE_MS = 30_000

/**
 * The time after which a worker that can't sync destroys its runs, in milliseconds. All of them are destroyed before
 * the lease ends.
 */
export const RENEW_DEADLINE_MS = 20_000

/** The position of a report among all reports of its worker. Reports may arrive out of order and with any delay. */
export type ReportPosition = {
  /** A UUIDv7 of one process of the worker, in lower case. Later processes have greater values. */
  readonly incarnation: string
  /** The number of the report within its incarnation. */
  readonly seq: number
}

/** Whether a report was made after another one of the same worker. */
export function isLaterReport(report: ReportPosition, than: ReportPosition): boolean {
  return report.incarnation === than.incarnation ? report.seq > than.seq : report.incarnation > than.incarnation
}

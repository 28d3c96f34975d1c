/** Where a worker's report stands among all of that worker: reports may arrive in any order, however late. */
export type ReportPosition = {
  /** A UUIDv7 of one life of the worker's process, in lower case; later lives have greater ones. */
  readonly incarnation: string
  /** Counts up within a life. */
  readonly seq: number
}

/** Whether a report was made after another one of the same worker. */
export function isLaterReport(report: ReportPosition, than: ReportPosition): boolean {
  return report.incarnation === than.incarnation ? report.seq > than.seq : report.incarnation > than.incarnation
}

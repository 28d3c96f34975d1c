/**
 * The protocol of the stream on which a worker sends a sandbox's log to the control plane. Each line is one `LogLine`
 * as JSON. The query is in the `StreamTicket` of kind `logs`. The control plane sends nothing on the stream, and closes
 * it when it needs no more lines.
 */

/**
 * The source of a log text: standard output, standard error, a terminal (which combines both), or the worker. The
 * public client fails on any other value.
 */
export const LOG_SOURCES = ['stdout', 'stderr', 'output', 'system'] as const
export type LogSource = (typeof LOG_SOURCES)[number]

/**
 * A position between two entries of a sandbox's log. `generation` is the number of a log file. The numbers increase and
 * are never reused. Both fields are whole numbers of at most 2^53 - 1.
 */
export type LogPosition = { readonly generation: number; readonly offset: number }

export type LogEntry = {
  /** The position after this entry. A reader that resumes at this position gets the next entry. */
  readonly position: LogPosition
  readonly source: LogSource
  /** The time at which the worker received the text: RFC 3339 with milliseconds, UTC. */
  readonly ts: string
  /**
   * A line with its line feed. A text without line feed continues in the next entry of its source, or the output ended
   * there.
   */
  readonly text: string
}

/**
 * The part of a log to send. All conditions apply together. Entries are sent in the order in which they were written.
 */
export type LogQuery = {
  readonly sources: readonly LogSource[]
  /**
   * Sends only entries after this position. If log rotation has deleted the position, sends from the oldest remaining
   * entry.
   */
  readonly after: LogPosition | null
  /** Sends only entries from this time on (RFC 3339, inclusive). */
  readonly since: string | null
  /** Sends only entries before this time (RFC 3339, exclusive). */
  readonly until: string | null
  /** Sends only the last `tail` of the existing entries that meet all other conditions. Null: all of them. */
  readonly tail: number | null
  /** Whether to wait for later entries. The wait ends when the sandbox has no open run or when `until` has passed. */
  readonly follows: boolean
}

/**
 * One line of the stream. `ended`: the last run has ended, so no entry can follow. `complete`: all requested entries
 * were sent.
 */
export type LogLine = LogEntry | { readonly end: 'ended' | 'complete' }

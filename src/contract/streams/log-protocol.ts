/**
 * The stream in which a worker sends a sandbox's log to the control plane: lines of JSON, each a `LogLine`. The `StreamTicket` of
 * kind `logs` holds the query. The control plane writes nothing, and closes the stream when it has enough.
 */

/**
 * Where a text comes from: standard output, standard error, a terminal (which combines both), or the worker itself. The public
 * client fails on any other word.
 */
export const LOG_SOURCES = ['stdout', 'stderr', 'output', 'system'] as const
export type LogSource = (typeof LOG_SOURCES)[number]

/**
 * A position between two entries of a sandbox's log. A generation is one file of the log; they count up and are never reused. Both
 * are whole numbers of at most 2^53 - 1.
 */
export type LogPosition = { readonly generation: number; readonly offset: number }

export type LogEntry = {
  /** The position after this entry: a reader that goes on from here gets the next one. */
  readonly position: LogPosition
  readonly source: LogSource
  /** When the worker received it: RFC 3339 with milliseconds, UTC. */
  readonly ts: string
  /** A line with its line feed. Without one, the line goes on in the next entry of its source, or never ended. */
  readonly text: string
}

/** Which part of a log to send. All limits apply together. Entries come in the order in which they were written. */
export type LogQuery = {
  readonly sources: readonly LogSource[]
  /** Only entries after this position. If rotation has deleted it, from the oldest entry that is left. */
  readonly after: LogPosition | null
  /** RFC 3339, inclusive. */
  readonly since: string | null
  /** RFC 3339, exclusive. */
  readonly until: string | null
  /** Of the existing entries, only the last so many that match all else. Null: all. */
  readonly tail: number | null
  /** Whether to wait for later entries, until no run of the sandbox is left or `until` has passed. */
  readonly follows: boolean
}

/** `ended`: the last run has ended, so nothing more can come. `complete`: everything that the query asked for was sent. */
export type LogLine = LogEntry | { readonly end: 'ended' | 'complete' }

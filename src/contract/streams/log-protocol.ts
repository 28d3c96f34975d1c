/**
 * The stream by which a worker tells the control plane what a sandbox logged: one JSON text a line, each a `LogLine`.
 * The control plane asks by the ticket (`StreamTicket` of kind `logs`) and writes nothing; it hangs up when it has enough.
 */

/**
 * Where a text came from: a process's standard output or error, a terminal (where both are one), or the worker itself.
 * Source: client-traffic.md, section 7; any other word is fatal to the public client.
 */
export const LOG_SOURCES = ['stdout', 'stderr', 'output', 'system'] as const
export type LogSource = (typeof LOG_SOURCES)[number]

/**
 * A position between two entries of a sandbox's log. A generation is one file of it; they count up and are never used
 * again. Both are whole numbers of at most 2^53 - 1.
 */
export type LogPosition = { readonly generation: number; readonly offset: number }

export type LogEntry = {
  /** Right behind this entry: a reader that goes on from here gets the next one. */
  readonly position: LogPosition
  readonly source: LogSource
  /** When the worker took it in: RFC 3339 with milliseconds, UTC. */
  readonly ts: string
  /** A line with its line feed; without one when the line goes on in the next entry of its source or never ended. */
  readonly text: string
}

/** What part of a log is asked for. Every limit given holds; the order is that in which entries were written. */
export type LogQuery = {
  readonly sources: readonly LogSource[]
  /** Entries behind this position alone; one that rotation has deleted means from the oldest that is left. */
  readonly after: LogPosition | null
  /** RFC 3339, included. */
  readonly since: string | null
  /** RFC 3339, excluded. */
  readonly until: string | null
  /** Of what is there already, only the last so many that satisfy all else; null: all. */
  readonly tail: number | null
  /** Whether to wait for what is still to come, until no run of the sandbox is left or `until` is over. */
  readonly follows: boolean
}

/** `end`: nothing more can come (`ended`: followed to the end of the last run) or was asked for (`complete`). */
export type LogLine = LogEntry | { readonly end: 'ended' | 'complete' }

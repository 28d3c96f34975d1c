import type { Queryable } from './database.ts'

/** A stretch of rows to delete: those from before an instant, at most `limit`, after the end of the previous stretch. */
export type Stretch = {
  readonly before: Date
  /** The `last` of the previous stretch. Null: begin with the oldest rows. */
  readonly after: string | null
  readonly limit: number
  readonly now: Date
}

/**
 * How far a step got. `walked` is the number of rows that it read. If it is less than the limit, no rows are left. The
 * next step begins after `last`: it doesn't read again what this one deleted or kept.
 */
export type StepResult = { readonly walked: number; readonly last: string | null }

/** Deletes a stretch of rows, and keeps those that are still needed. May be repeated, and run twice at once. */
export type PruneStep = (q: Queryable, stretch: Stretch) => Promise<StepResult>

import { appendFileSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'

/** The chapters of `docs/reliability.md`. */
export const AREAS = ['replicas', 'workers', 'postgresql', 'data', 'schedules', 'clients', 'soak'] as const

/** A fault that a test injected, and its result: one row of `docs/reliability.md`. */
export type FaultNote = {
  readonly area: (typeof AREAS)[number]
  /** The fault, such as `kill -9 of a replica under load`. */
  readonly fault: string
  /** How many times the test injected the fault, counted while it did so. */
  readonly injected: number
  /** What the test checked during or after the fault, with its limits. */
  readonly checked: string
  /** What the test observed, with figures that it counted or measured. */
  readonly found: string
}

/** The variable with the folder into which tests write their notes. If it is not set, they write none. */
export const NOTES_VARIABLE = 'SANDYARD_RELIABILITY_NOTES'

/** Appends a note to a file in that folder. Call it after all checks. Does nothing outside of `npm run reliability`. */
export function noteFault(note: FaultNote): void {
  const folder = process.env[NOTES_VARIABLE]
  if (folder === undefined || folder === '') return
  mkdirSync(folder, { recursive: true })
  appendFileSync(join(folder, `${String(process.pid)}.jsonl`), `${JSON.stringify(note)}\n`)
}

import { appendFileSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'

/** The chapters of `docs/reliability.md`. */
export const AREAS = ['replicas', 'workers', 'postgresql', 'schedules', 'clients', 'soak'] as const

/** One fault that a test injected, and the result: a row of `docs/reliability.md`. */
export type FaultNote = {
  readonly area: (typeof AREAS)[number]
  /** What was done, such as `kill -9 of a replica under load`. */
  readonly fault: string
  /** How often, counted by the test as it did it. */
  readonly injected: number
  /** What was looked at afterwards or meanwhile, with its bound. */
  readonly checked: string
  /** What was seen, with figures: counted, never assumed. */
  readonly found: string
}

/** The variable with the folder for the notes of a run. Without it, nothing is noted. */
export const NOTES_VARIABLE = 'SANDYARD_RELIABILITY_NOTES'

/** Notes a fault for the report, after the test has checked everything. Does nothing outside of `npm run reliability`. */
export function noteFault(note: FaultNote): void {
  const folder = process.env[NOTES_VARIABLE]
  if (folder === undefined || folder === '') return
  mkdirSync(folder, { recursive: true })
  appendFileSync(join(folder, `${String(process.pid)}.jsonl`), `${JSON.stringify(note)}\n`)
}

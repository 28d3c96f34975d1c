import { appendFileSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'

/** The chapters of `docs/reliability.md`. */
export const AREAS = ['replicas', 'workers', 'postgresql', 'schedules', 'clients', 'soak'] as const

/** What one test did to the program and what came of it: a row of `docs/reliability.md`. */
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

/** The folder that the notes of a run go to; without it nothing is noted. */
export const NOTES_VARIABLE = 'SANDYARD_RELIABILITY_NOTES'

/** Notes a fault for the report; call it once the test has seen that all holds. Does nothing outside of `npm run reliability`. */
export function noteFault(note: FaultNote): void {
  const folder = process.env[NOTES_VARIABLE]
  if (folder === undefined || folder === '') return
  mkdirSync(folder, { recursive: true })
  appendFileSync(join(folder, `${String(process.pid)}.jsonl`), `${JSON.stringify(note)}\n`)
}

import { sinceBootMs, type Clock } from '../../../lib/clock.ts'
import { statOrNull } from '../../../lib/files.ts'
import type { RunRecord } from './run-records.ts'

/**
 * How long a run has run, for its report. Empty if it never started, or if it started before the machine's last boot.
 * `endedMsAgo` is how long ago it ended.
 */
export function measureRun(
  { started_ms, ran_ms, boot_id }: RunRecord<unknown>,
  bootId: string,
  endedMsAgo = 0,
): { readonly ran_ms?: number } {
  if (ran_ms !== undefined) return { ran_ms }
  if (started_ms === undefined || boot_id !== bootId) return {}
  return { ran_ms: Math.max(0, sinceBootMs() - started_ms - endedMsAgo) }
}

/** How long ago a run ended that ended while no worker ran, in milliseconds: the age of its end file. */
export async function readEndedMsAgo(endFile: string, clock: Pick<Clock, 'now'>): Promise<number> {
  const file = await statOrNull(endFile)
  return file === null ? 0 : Math.max(0, clock.now().getTime() - Math.floor(file.mtimeMs))
}

/** Snapshots at regular times, which a client asks for by a label of the sandbox. */
import { DAY_MS, HOUR_MS } from '../usage/metering.ts'

export const SNAPSHOT_LABEL = 'sandyard.snapshot'
/** The time between two snapshots, in milliseconds. */
export const SCHEDULE_PERIODS_MS = { hourly: HOUR_MS, daily: DAY_MS, weekly: 7 * DAY_MS } as const
/** How many are kept if the label doesn't say. */
export const KEPT_BY_DEFAULT = 7
const KEPT_MAX = 100

/** What the label accepts. */
export const SCHEDULE_RULE = `hourly, daily or weekly, then the number to keep from 1 to ${String(KEPT_MAX)}, as in "daily keep=7"`
const SHAPE = /^(?:hourly|daily|weekly)(?: keep=([1-9][0-9]{0,2}))?$/

/** Whether a text is a valid schedule. */
export function isSchedule(text: string): boolean {
  const match = SHAPE.exec(text)
  return match !== null && Number(match[1] ?? KEPT_BY_DEFAULT) <= KEPT_MAX
}

/** The name of a scheduled snapshot: the slug of the sandbox and the time, such as `build-42-20261123-093000`. */
export function scheduledName(slug: string, at: Date): string {
  const [day = '', time = ''] = at.toISOString().replace(/[-:]/g, '').split('T')
  return `${slug}-${day}-${time.slice(0, 'HHMMSS'.length)}`
}

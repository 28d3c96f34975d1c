const UNIT_MS: Readonly<Record<string, number>> = { m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 }

/** Describes a valid duration for people. */
export const DURATION_RULE = 'a whole number of minutes, hours, days or weeks, such as 90m, 12h, 30d or 8w'

/** Parses a duration such as `30d` into milliseconds. Returns null for any other text, and for a duration of 0. */
export function parseDurationMs(text: string): number | null {
  const [, count, unit] = /^([1-9]\d{0,5})([mhdw])$/.exec(text) ?? []
  const unitMs = UNIT_MS[unit ?? '']
  return count === undefined || unitMs === undefined ? null : Number(count) * unitMs
}

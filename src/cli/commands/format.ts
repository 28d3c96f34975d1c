const UNITS: readonly (readonly [ms: number, name: string])[] = [
  [86_400_000, 'd'],
  [3_600_000, 'h'],
  [60_000, 'm'],
  [1_000, 's'],
]

/** Formats a duration with its two largest units, such as `3d 4h`. Less than a second is `0s`. */
export function formatDuration(ms: number): string {
  const largest = UNITS.findIndex(([unitMs]) => ms >= unitMs)
  const parts: string[] = []
  let left = ms
  for (const [unitMs, name] of largest === -1 ? [] : UNITS.slice(largest, largest + 2)) {
    const count = Math.floor(left / unitMs)
    left -= count * unitMs
    if (count > 0) parts.push(`${String(count)}${name}`)
  }
  return parts.length === 0 ? '0s' : parts.join(' ')
}

/** Formats an instant with its age, such as `2028-02-29T12:00:00Z (3m 5s ago)`. */
export function formatInstant(instant: Date, now: Date): string {
  const ageMs = now.getTime() - instant.getTime()
  const age = ageMs < 0 ? `in ${formatDuration(-ageMs)}` : `${formatDuration(ageMs)} ago`
  return `${formatTime(instant)} (${age})`
}

/** Formats an instant in UTC, to the second. */
export function formatTime(instant: Date): string {
  return instant.toISOString().replace(/\.\d+Z$/, 'Z')
}

/** Formats mebibytes, with GiB from 1024 on. */
export function formatMib(mib: number): string {
  if (mib < 1024) return `${String(mib)} MiB`
  const gib = mib / 1024
  return `${Number.isInteger(gib) ? String(gib) : gib.toFixed(1)} GiB`
}

const BYTES_PER_MIB = 1_048_576

/** Formats bytes in MiB or GiB, rounded up to whole MiB. */
export function formatBytes(bytes: number): string {
  return formatMib(Math.ceil(Math.max(0, bytes) / BYTES_PER_MIB))
}

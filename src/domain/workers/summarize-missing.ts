import type { MissingRequirement } from './explain-placement.ts'

/** Describes what a waiting run lacks, for the log: `vcpus: 8 requested, 2 free`. */
export function summarizeMissing(missing: readonly MissingRequirement[]): string {
  if (missing.length === 0) return 'a worker has the capacity by now'
  return missing
    .map(({ kind, name, requested, largest_free, accepted }) =>
      largest_free === null
        ? `no worker has the ${kind} ${name}: ${String(requested)} requested${accepted === null ? '' : `; accepted: ${accepted}`}`
        : `${name}: ${String(requested)} requested, ${String(largest_free)} free`,
    )
    .join('; ')
}

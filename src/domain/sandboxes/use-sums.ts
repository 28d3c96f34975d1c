import type { UsePoint } from './use-points.ts'

/** By what running sandboxes are sorted: by what they use. */
export const USE_ORDERS = ['cpu', 'memory', 'disk', 'network', 'processes'] as const
export type UseOrder = (typeof USE_ORDERS)[number]

/** A running sandbox: what it has, and what it used at last. */
export type Measured = { readonly vcpus: number; readonly memory_mib: number; readonly use: UsePoint | null }

export type UseSums = {
  readonly running: number
  readonly measured: number
  readonly vcpus: number
  readonly used_vcpus: number
  readonly memory_bytes: number
  readonly used_memory_bytes: number
  readonly disk_used_bytes: number
  readonly received_bytes_per_sec: number
  readonly sent_bytes_per_sec: number
}

const BYTES_PER_MIB = 1_048_576

/** Adds up what sandboxes have and use. Those without a measurement use nothing. */
export function sumUse(sandboxes: readonly Measured[]): UseSums {
  const uses = sandboxes.flatMap(({ use }) => (use === null ? [] : [use]))
  return {
    running: sandboxes.length,
    measured: uses.length,
    vcpus: sum(sandboxes, ({ vcpus }) => vcpus),
    used_vcpus: rounded(sum(uses, usedVcpus)),
    memory_bytes: sum(sandboxes, ({ memory_mib }) => memory_mib * BYTES_PER_MIB),
    used_memory_bytes: Math.round(sum(uses, ({ memoryBytes }) => memoryBytes)),
    disk_used_bytes: sum(uses, ({ diskBytes }) => diskBytes ?? 0),
    received_bytes_per_sec: rounded(sum(uses, (use) => perSecond(use, use.receivedBytes))),
    sent_bytes_per_sec: rounded(sum(uses, (use) => perSecond(use, use.sentBytes))),
  }
}

/** Sorts sandboxes by what they use, the most first. Those without a measurement come last. */
export function sortByUse<Of extends Measured>(sandboxes: readonly Of[], order: UseOrder): readonly Of[] {
  const rank = ({ use }: Measured): number => (use === null ? -1 : RANKS[order](use))
  return sandboxes.toSorted((a, b) => rank(b) - rank(a))
}

const RANKS: Readonly<Record<UseOrder, (use: UsePoint) => number>> = {
  cpu: usedVcpus,
  memory: ({ memoryBytes }) => memoryBytes,
  disk: ({ diskBytes }) => diskBytes ?? 0,
  network: (use) => perSecond(use, (use.receivedBytes ?? 0) + (use.sentBytes ?? 0)),
  processes: ({ processes }) => processes ?? 0,
}

/** A point as replies have it: `MetricPoint`. */
export function renderUsePoint(point: UsePoint): object {
  return {
    at: new Date(point.atMs).toISOString(),
    covered_secs: rounded(point.coveredMs / 1_000),
    used_vcpus: rounded(usedVcpus(point)),
    memory_bytes: Math.round(point.memoryBytes),
    memory_max_bytes: point.memoryMaxBytes,
    processes: point.processes,
    disk_used_bytes: point.diskBytes,
    received_bytes: point.receivedBytes,
    sent_bytes: point.sentBytes,
  }
}

function usedVcpus({ cpuMs, coveredMs }: UsePoint): number {
  return coveredMs === 0 ? 0 : cpuMs / coveredMs
}

function perSecond({ coveredMs }: UsePoint, bytes: number | null): number {
  return coveredMs === 0 ? 0 : ((bytes ?? 0) / coveredMs) * 1_000
}

function sum<Of>(items: readonly Of[], value: (item: Of) => number): number {
  return items.reduce((total, item) => total + value(item), 0)
}

/** To four digits after the point: a tenth of a thousandth of a vCPU. */
function rounded(value: number): number {
  return Math.round(value * 10_000) / 10_000
}

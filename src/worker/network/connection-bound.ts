import { readFileOrNull } from '../../lib/files.ts'

/** At least this many sandboxes fit into the kernel's connection table, each with as many connections as it may have. */
const SANDBOXES_AT_BOUND = 16

/** How long the kernel keeps the entry of a closed TCP connection, in seconds (nf_conntrack_tcp_timeout_time_wait). */
const CLOSED_ENTRY_SECS = 120

/** The most tracked connections of one sandbox, and how many it may begin in a second. */
export type ConnectionBound = { readonly connections: number; readonly newPerSecond: number }

/**
 * The bound of a sandbox: the setting, or less if the connection table is small. The rate bounds the entries of closed
 * connections, which the kernel keeps but doesn't count. They fill at most six times the bound.
 */
export function connectionBound(setting: number, tableSize: number | null): ConnectionBound {
  const connections = Math.min(setting, Math.floor((tableSize ?? Infinity) / SANDBOXES_AT_BOUND))
  return { connections, newPerSecond: Math.ceil((6 * connections) / CLOSED_ENTRY_SECS) }
}

/** The size of the kernel's connection table. Null if the kernel tracks no connections yet. */
export async function readConnectionTableSize(): Promise<number | null> {
  const text = await readFileOrNull('/proc/sys/net/netfilter/nf_conntrack_max')
  return text === null ? null : Number(text)
}

/** Describes the bound for `sandyard doctor`. */
export function describeConnectionBound(setting: number, tableSize: number | null): string {
  const { connections, newPerSecond } = connectionBound(setting, tableSize)
  const table = tableSize === null ? 'unknown until the kernel tracks a connection' : String(tableSize)
  const cut = connections < setting ? `, less than SANDYARD_CONNECTIONS_PER_SANDBOX (${String(setting)})` : ''
  return `${String(connections)} for each sandbox${cut}, ${String(newPerSecond)} new ones a second; nf_conntrack_max is ${table}`
}

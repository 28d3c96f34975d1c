/**
 * Which server processes live. Each writes its row anew every few seconds; whoever reads a row that stays the same for a
 * while, by its own monotonic clock, takes that process for gone. Clocks of different machines are never compared.
 */
import { interruptibleSleep, type Clock } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import type { Database } from '../store/database.ts'
import * as replicas from '../store/replicas.ts'

export type ReplicasDeps = { readonly db: Database; readonly clock: Clock; readonly log: Log }

/** What a process knows of those that serve beside it, as of a few seconds ago. */
export interface Replicas {
  /** The URL by which workers reach this process, or null when it has none to give. */
  readonly ownUrl: string | null
  /** How many processes live, this one included. */
  readonly count: number
  /** How workers reach the processes that live, this one included; in the same order everywhere, and bounded. */
  readonly urls: readonly string[]
  /** Writes this process down and reads the others; then keeps on until the signal, and takes it off. Never rejects. */
  keep(signal: AbortSignal): Promise<void>
  /** The same, once. Rejects when the database can't be reached. */
  renew(): Promise<void>
}

/** How often a process says that it lives, in milliseconds. */
export const RENEW_EVERY_MS = 5_000
/** How long a row may stay the same before its process is taken for gone. */
export const REPLICA_GONE_MS = 15_000
/** How much longer its row stays, for who reads the table. */
const KEPT_AFTER_MS = 45_000
/** The most processes that are known of. */
const REPLICAS_LIMIT = 64

type Known = { readonly row: replicas.SeenReplica; readonly sinceMs: number }

/** The directory of this process. `self.url` must not be that of another one that lives. */
export function makeReplicas(deps: ReplicasDeps, self: replicas.Replica): Replicas {
  const { db, clock, log } = deps
  let known = new Map<string, Known>()
  let live: readonly replicas.Replica[] = [self]
  let own: replicas.SeenReplica | null = null

  async function renew(): Promise<void> {
    const seen = { ...self, seen_at: clock.now() }
    const rows = await db.asSystem(async (q) => {
      if (own === null && self.url !== null) await replicas.removeOthersAt(q, self.url, self.id)
      await replicas.renew(q, seen)
      return replicas.list(q, REPLICAS_LIMIT)
    })
    own = seen
    const nowMs = clock.monotonicMs()
    known = new Map(
      rows.map((row) => {
        const before = known.get(row.id)
        const isSame = before?.row.seen_at.getTime() === row.seen_at.getTime()
        return [row.id, isSame ? before : { row, sinceMs: nowMs }]
      }),
    )
    const agesMs = [...known.values()].map(({ row, sinceMs }) => ({ row, ageMs: nowMs - sinceMs }))
    const others = agesMs.filter(({ row, ageMs }) => row.id !== self.id && ageMs < REPLICA_GONE_MS)
    live = [self, ...others.map(({ row }) => row)].sort((a, b) => (a.id < b.id ? -1 : 1))
    for (const { row, ageMs } of agesMs)
      if (ageMs >= REPLICA_GONE_MS + KEPT_AFTER_MS) await db.asSystem((q) => replicas.remove(q, row))
  }

  return {
    ownUrl: self.url,
    get count() {
      return live.length
    },
    get urls() {
      return [...new Set(live.flatMap(({ url }) => (url === null ? [] : [url])))]
    },
    renew,
    async keep(signal) {
      while (!signal.aborted) {
        try {
          await renew()
        } catch (error) {
          log.warn({ error }, 'this replica could not say that it lives; it is tried again')
        }
        await interruptibleSleep(clock, RENEW_EVERY_MS, signal)
      }
      const last = own
      if (last === null) return
      try {
        await db.asSystem((q) => replicas.remove(q, last))
      } catch (error) {
        log.warn({ error }, 'this replica could not be taken off; the others will see that it is gone')
      }
    },
  }
}

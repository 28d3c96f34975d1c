/**
 * Which server processes are alive. Each process renews its row every few seconds. A reader considers a process dead
 * once its row stays unchanged for a while by the reader's own monotonic clock. Clocks of different machines are never
 * compared.
 */
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { Database } from '../../store/postgres/database.ts'
import * as replicas from '../../store/workers/replicas.ts'
import type { Notifications } from '../../store/postgres/notifications.ts'
import { runOnNotification } from '../requests/run-on-notification.ts'

export type ReplicasDeps = {
  readonly db: Database
  readonly clock: Clock
  readonly log: Log
  readonly notifications: Pick<Notifications, 'publish' | 'subscribe'>
}

/** The topic that announces a new server process. */
const REPLICA_JOINED_TOPIC = 'replicas'

/** What a process knows about the other server processes, as of a few seconds ago. */
export interface Replicas {
  /** The URL by which workers reach this process. Null before `announce`, and for a process without a URL. */
  readonly ownUrl: string | null
  /** How many processes are alive, including this one. */
  readonly count: number
  /**
   * The URLs of the live processes, including this one. Their order is the same in every process, and their number is
   * bounded.
   */
  readonly urls: readonly string[]
  /**
   * Writes the row of this process with its URL, and reads the other rows. Rejects when the database is unavailable.
   */
  announce(url: string | null): Promise<void>
  /** Renews the row of this process until the signal aborts, and then deletes it. Never rejects. */
  keepAnnounced(signal: AbortSignal): Promise<void>
}

/** How often a process renews its row, in milliseconds. */
export const RENEW_EVERY_MS = 5_000
/** How long a row may stay unchanged before its process is considered dead, in milliseconds. */
export const REPLICA_GONE_MS = 15_000
/** How much longer the row of a dead process is kept for people who read the table, in milliseconds. */
const ROW_KEPT_AFTER_MS = 45_000
/** The maximum number of rows that are read. */
const REPLICAS_LIMIT = 64

/**
 * The server processes that renewed their row lately, for people. Unlike a replica, it compares the clocks of machines.
 */
export async function readLiveReplicas({
  db,
  clock,
}: Pick<ReplicasDeps, 'db' | 'clock'>): Promise<readonly replicas.Replica[]> {
  const rows = await db.asSystem((q) => replicas.list(q, REPLICAS_LIMIT))
  const from = clock.now().getTime() - REPLICA_GONE_MS
  return rows.filter(({ seen_at }) => seen_at.getTime() >= from)
}

type KnownReplica = { readonly row: replicas.ReplicaRow; readonly sinceMs: number }

/** Makes the directory of server processes for one process. No two live processes may announce the same URL. */
export function makeReplicas(deps: ReplicasDeps, process: Omit<replicas.Replica, 'url'>): Replicas {
  const { db, clock, log, notifications } = deps
  let self: replicas.Replica = { ...process, url: null }
  let known = new Map<string, KnownReplica>()
  let others: readonly replicas.Replica[] = []
  let own: replicas.ReplicaRow | null = null
  let renewedAtMs = -Infinity

  async function renew(): Promise<void> {
    const seen = { ...self, seen_at: clock.now() }
    const { id, url } = self
    const rows = await db.asSystem(async (q) => {
      if (own === null && url !== null) await replicas.removeOthersAt(q, url, id)
      await replicas.renew(q, seen)
      return replicas.list(q, REPLICAS_LIMIT)
    })
    own = seen
    const nowMs = clock.monotonicMs()
    // The other processes must know at once about a process that starts or continues after a pause: they show its
    // tickets to workers.
    if (nowMs - renewedAtMs >= REPLICA_GONE_MS) notifications.publish([REPLICA_JOINED_TOPIC])
    renewedAtMs = nowMs
    known = new Map(
      rows.map((row) => {
        const before = known.get(row.id)
        const isSame = before?.row.seen_at.getTime() === row.seen_at.getTime()
        return [row.id, isSame ? before : { row, sinceMs: nowMs }]
      }),
    )
    const agesMs = [...known.values()].map(({ row, sinceMs }) => ({ row, ageMs: nowMs - sinceMs }))
    others = agesMs.filter(({ row, ageMs }) => row.id !== id && ageMs < REPLICA_GONE_MS).map(({ row }) => row)
    for (const { row, ageMs } of agesMs)
      if (ageMs >= REPLICA_GONE_MS + ROW_KEPT_AFTER_MS) await db.asSystem((q) => replicas.remove(q, row))
  }

  return {
    get ownUrl() {
      return self.url
    },
    get count() {
      return others.length + 1
    },
    get urls() {
      const live = [self, ...others].sort((a, b) => (a.id < b.id ? -1 : 1)) // the oldest first
      return [...new Set(live.flatMap(({ url }) => (url === null ? [] : [url])))]
    },
    async announce(url) {
      self = { ...self, url }
      await renew()
    },
    async keepAnnounced(signal) {
      const renewAgain = async (): Promise<void> => {
        try {
          await renew()
        } catch (error) {
          log.warn({ error }, 'this replica could not renew its row; will retry')
        }
      }
      await runOnNotification(
        { clock, notifications, topic: REPLICA_JOINED_TOPIC, everyMs: RENEW_EVERY_MS },
        renewAgain,
        signal,
      )
      const last = own
      if (last === null) return
      try {
        await db.asSystem((q) => replicas.remove(q, last))
      } catch (error) {
        log.warn({ error }, 'this replica could not remove its row; other replicas will notice that it is gone')
      }
    },
  }
}

import type { LeaderFence } from '../control/deps.ts'
import { interruptibleSleep, NOTIFIED, type Clock } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import type { Database } from '../store/postgres/database.ts'
import * as leads from '../store/workers/leads.ts'
import type { Notifications } from '../store/postgres/notifications.ts'

/** The leadership of this process over the loops. Dispose of it to give the leadership up. */
export interface Leadership extends AsyncDisposable {
  /** Aborted when the leadership is lost or given up. Work that requires the leadership must stop then. */
  readonly lost: AbortSignal
  /**
   * Rejects with `LeadershipLost` if this process no longer leads. A leader that was paused during a pass can therefore
   * not write what it decided from outdated reads.
   */
  readonly fence: LeaderFence
}

/** This process no longer leads. It must not write anything as the leader. */
export class LeadershipLost extends Error {}

export type ElectionDeps = {
  readonly db: Database
  readonly clock: Clock
  readonly log: Log
  readonly notifications: Pick<Notifications, 'publish' | 'subscribe'>
  /** A UUID of this process. */
  readonly holder: string
  /**
   * True if no other process can use the database. A leadership that is held is then that of a process that has ended, for
   * example by SIGKILL, and nobody has to wait for its lease.
   */
  readonly isAlone?: boolean
}

/** How long a leader's heartbeat count stays unchanged before other processes consider it dead, in milliseconds. */
export const LEADER_LEASE_MS = 10_000
/**
 * How long after its last successful heartbeat a leader stops on its own, in milliseconds. It is shorter than
 * `LEADER_LEASE_MS`, so that the leader stops before another process may take over.
 */
export const LEADER_STOP_MS = 6_000
const HEARTBEAT_EVERY_MS = 2_000
/**
 * How often a waiting process checks whether the leadership is free, in milliseconds. A leader that gives the
 * leadership up notifies the waiting processes at once.
 */
const CHECK_EVERY_MS = 1_000

/**
 * Makes the function that waits until this process acquires the leadership with this name. The function rejects when
 * the database fails or the signal aborts.
 */
export function makeLeaderElection(deps: ElectionDeps, name: string): (signal: AbortSignal) => Promise<Leadership> {
  return async (signal) => {
    const isVacant = makeVacancyCheck(deps.clock)
    for (;;) {
      signal.throwIfAborted()
      using pause = makePause(deps, topicOf(name), signal)
      const sentAtMs = deps.clock.monotonicMs()
      const row = await deps.db.asSystem((q) => leads.find(q, name))
      // If the row still names this process, its earlier leadership ended without a release, for example in an outage.
      // No other process leads, so this one acquires the leadership again at once.
      if (row?.holder === deps.holder || deps.isAlone === true || isVacant(row, sentAtMs)) {
        const takenAtMs = deps.clock.monotonicMs()
        const epoch = await deps.db.asSystem((q) => leads.acquire(q, { name, holder: deps.holder, seen: row }))
        if (epoch !== null) return holdLeadership(deps, { name, holder: deps.holder, epoch }, takenAtMs)
      }
      await pause.sleep(CHECK_EVERY_MS)
    }
  }
}

function topicOf(name: string): string {
  return `lead:${name}`
}

/**
 * Makes a function that checks whether the leadership is free. It is free if no process has it, or if the row has shown
 * no new heartbeat for `LEADER_LEASE_MS`, by this process's clock.
 */
function makeVacancyCheck(clock: Clock): (seen: leads.LeadRow | null, sentAtMs: number) => boolean {
  let known: leads.LeadRow | null = null
  let sinceMs = 0
  return (seen, sentAtMs) => {
    if (seen === null || seen.holder === null) return true
    if (known?.epoch === seen.epoch && known.beats === seen.beats) return sentAtMs - sinceMs >= LEADER_LEASE_MS
    known = seen
    sinceMs = clock.monotonicMs()
    return false
  }
}

/**
 * Makes a pause that a notification of the topic ends early. A notification between this call and `sleep` ends the
 * pause too.
 */
function makePause(
  { clock, notifications }: Pick<ElectionDeps, 'clock' | 'notifications'>,
  topic: string,
  signal: AbortSignal,
) {
  const notified = new AbortController()
  const unsubscribe = notifications.subscribe(topic, () => notified.abort(NOTIFIED))
  return {
    sleep: (ms: number) => interruptibleSleep(clock, ms, notified.signal, signal),
    [Symbol.dispose]: unsubscribe,
  }
}

function holdLeadership(deps: ElectionDeps, term: leads.LeadTerm, takenAtMs: number): Leadership {
  const { db, clock, log, notifications } = deps
  const lost = new AbortController()
  let beatAtMs = takenAtMs
  const lose = (reason: string): void => {
    if (lost.signal.aborted) return
    log.warn({ lead: term.name, epoch: term.epoch }, reason)
    lost.abort(new LeadershipLost(reason))
  }

  async function sendHeartbeats(): Promise<void> {
    while (!lost.signal.aborted) {
      await interruptibleSleep(clock, HEARTBEAT_EVERY_MS, lost.signal)
      if (lost.signal.aborted) return
      const sentAtMs = clock.monotonicMs()
      try {
        if (await db.asSystem((q) => leads.renew(q, term))) beatAtMs = sentAtMs
        else lose('another process has taken over leadership')
      } catch (error) {
        log.warn({ error, lead: term.name }, 'could not send a heartbeat of the leader')
      }
    }
  }

  /**
   * Ends the leadership `LEADER_STOP_MS` after the last successful heartbeat. It runs apart from `sendHeartbeats`,
   * because a heartbeat that hangs must not delay this end.
   */
  async function stopWhenStale(): Promise<void> {
    while (!lost.signal.aborted) {
      const restMs = beatAtMs + LEADER_STOP_MS - clock.monotonicMs()
      if (restMs <= 0) lose('gave up leadership: no heartbeat succeeded for too long')
      else await interruptibleSleep(clock, restMs, lost.signal)
    }
  }

  const running = Promise.all([sendHeartbeats(), stopWhenStale()])
  return {
    lost: lost.signal,
    async fence(tx) {
      lost.signal.throwIfAborted()
      if (await leads.lockIfHeld(tx, term)) return
      lose('another process has taken over leadership')
      throw new LeadershipLost('another process has taken over leadership')
    },
    async [Symbol.asyncDispose]() {
      if (!lost.signal.aborted) lost.abort(new LeadershipLost('leadership was given up'))
      await running
      await db.asSystem((q) => leads.release(q, term))
      notifications.publish([topicOf(term.name)])
    },
  }
}

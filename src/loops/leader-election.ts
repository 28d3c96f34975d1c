import { interruptibleSleep, NOTIFIED, type Clock } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import type { Database, Queryable } from '../store/postgres/database.ts'
import * as leads from '../store/workers/leads.ts'
import type { Notifications } from '../store/postgres/notifications.ts'

/** The lead of the loops in the hands of this process. Dispose of it to give it up. */
export interface Leadership extends AsyncDisposable {
  /** Aborted when the lead is lost or given up: what must run once stops then. */
  readonly lost: AbortSignal
  /**
   * Rejects with `LeadershipLost` unless the lead is still this one's, and keeps it so until the transaction ends: a process
   * that stood still in the middle of a pass writes nothing by what it saw before.
   */
  readonly fence: (tx: Queryable) => Promise<void>
}

/** Another process leads; what this one wanted to do is the other one's now. */
export class LeadershipLost extends Error {}

export type LeadDeps = {
  readonly db: Database
  readonly clock: Clock
  readonly log: Log
  readonly notifications: Pick<Notifications, 'publish' | 'subscribe'>
  /** A UUID of this process. */
  readonly holder: string
}

/** How long the same beats are seen before their holder is taken for gone, in milliseconds. */
export const LEADER_LEASE_MS = 10_000
/** When a holder that could not beat stops by itself, counted from the last beat that it sent: before another may begin. */
export const LEADER_STOP_MS = 6_000
const HEARTBEAT_EVERY_MS = 2_000
/** How often who wants the lead looks; a lead that is given up is told at once. */
const LOOK_EVERY_MS = 1_000

/** Makes what waits for the lead of this name, and rejects when the database can't be asked or the signal comes. */
export function makeLeaderElection(deps: LeadDeps, name: string): (signal: AbortSignal) => Promise<Leadership> {
  return async (signal) => {
    const challenge = makeChallenge(deps.clock)
    for (;;) {
      signal.throwIfAborted()
      using rest = makeRest(deps, topicOf(name), signal)
      const sentAtMs = deps.clock.monotonicMs()
      const seen = await deps.db.asSystem((q) => leads.find(q, name))
      // What this process led before is over when it asks again: after an outage it goes on at once.
      if (seen?.holder === deps.holder || challenge(seen, sentAtMs)) {
        const takenAtMs = deps.clock.monotonicMs()
        const epoch = await deps.db.asSystem((q) => leads.acquire(q, { name, holder: deps.holder, seen }))
        if (epoch !== null) return lead(deps, { name, holder: deps.holder, epoch }, takenAtMs)
      }
      await rest.sleep(LOOK_EVERY_MS)
    }
  }
}

function topicOf(name: string): string {
  return `lead:${name}`
}

/** Answers whether the lead may be taken: nobody has it, or its holder stood still for a lease of this clock. */
function makeChallenge(clock: Clock): (seen: leads.LeadRow | null, sentAtMs: number) => boolean {
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

/** A pause that a wake-up ends, also one that came before it began. */
function makeRest(
  { clock, notifications }: Pick<LeadDeps, 'clock' | 'notifications'>,
  topic: string,
  signal: AbortSignal,
) {
  const woken = new AbortController()
  const unsubscribe = notifications.subscribe(topic, () => woken.abort(NOTIFIED))
  return {
    sleep: (ms: number) => interruptibleSleep(clock, ms, AbortSignal.any([woken.signal, signal])),
    [Symbol.dispose]: unsubscribe,
  }
}

function lead(deps: LeadDeps, mandate: leads.LeadTerm, takenAtMs: number): Leadership {
  const { db, clock, log, notifications } = deps
  const lost = new AbortController()
  let beatAtMs = takenAtMs
  const lose = (reason: string): void => {
    if (lost.signal.aborted) return
    log.warn({ lead: mandate.name, epoch: mandate.epoch }, reason)
    lost.abort(new LeadershipLost(reason))
  }

  async function keepBeating(): Promise<void> {
    while (!lost.signal.aborted) {
      await interruptibleSleep(clock, HEARTBEAT_EVERY_MS, lost.signal)
      if (lost.signal.aborted) return
      const sentAtMs = clock.monotonicMs()
      try {
        if (await db.asSystem((q) => leads.renew(q, mandate))) beatAtMs = sentAtMs
        else lose('another process has taken the lead')
      } catch (error) {
        log.warn({ error, lead: mandate.name }, 'the holder of a lead could not beat')
      }
    }
  }

  /** Apart from the beats: one that hangs must not keep the holder from seeing that its time is over. */
  async function keepWatching(): Promise<void> {
    while (!lost.signal.aborted) {
      const restMs = beatAtMs + LEADER_STOP_MS - clock.monotonicMs()
      if (restMs <= 0) lose('the lead was left: it could not be said for too long that its holder lives')
      else await interruptibleSleep(clock, restMs, lost.signal)
    }
  }

  const keeping = Promise.all([keepBeating(), keepWatching()])
  return {
    lost: lost.signal,
    async fence(tx) {
      lost.signal.throwIfAborted()
      if (await leads.lockIfHeld(tx, mandate)) return
      lose('another process has taken the lead')
      throw new LeadershipLost('another process has taken the lead')
    },
    async [Symbol.asyncDispose]() {
      if (!lost.signal.aborted) lost.abort(new LeadershipLost('the lead was given up'))
      await keeping
      await db.asSystem((q) => leads.release(q, mandate))
      notifications.publish([topicOf(mandate.name)])
    },
  }
}

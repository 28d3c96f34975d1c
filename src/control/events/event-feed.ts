import type { OrgId } from '../../domain/ids.ts'
import { interruptibleSleep } from '../../lib/clock.ts'
import * as eventWindows from '../../store/events/event-windows.ts'
import type { BaseDeps } from '../deps.ts'

export type WindowEvent = eventWindows.WindowEvent

/** The events of one organization in a window, in their order. */
export type EventWindow = { readonly from: bigint; readonly to: bigint; readonly events: readonly WindowEvent[] }

/** Reads new events for all streams of a process together, while there are streams. */
export type EventFeed = {
  /**
   * Calls `onWindow` with each window that has events of the organization, beginning at the returned transaction. With null, events may
   * have been left out: subscribe again, and read what was recorded meanwhile. Call `stop` in the end.
   */
  subscribe(
    org: OrgId,
    onWindow: OnWindow,
  ): Promise<{ readonly epoch: string; readonly from: bigint; readonly stop: () => void }>
}

type OnWindow = (window: EventWindow | null) => void

/** How often new events are looked for. A look takes 0.3 ms of the database without events (2026-11). */
const PERIOD_MS = 20
const RETRY_MS = 1_000
/** The most events of one look. A transaction that is open for long holds back those of all others, which then appear at once. */
const EVENTS_MAX = 5_000

type Horizon = { readonly epoch: string; readonly xid: bigint }

/** Makes the feed of a process. */
export function makeEventFeed({ db, clock, log }: Pick<BaseDeps, 'db' | 'clock' | 'log'>): EventFeed {
  const listeners = new Map<OrgId, Set<OnWindow>>()
  /** The state after the latest look. Each look begins when the one before has ended. */
  let reached: Promise<Horizon> | null = null
  const never = new AbortController().signal

  const look = async ({ epoch, xid }: Horizon): Promise<Horizon> => {
    const asked = { orgs: [...listeners.keys()], from: xid, limit: EVENTS_MAX }
    const found = await db.asSystem((q) => eventWindows.newest(q, asked))
    const { to, events } = found
    if (events === null || found.epoch !== epoch)
      for (const ofOrg of listeners.values()) for (const onWindow of ofOrg) onWindow(null)
    else
      for (const [org_id, ofOrg] of Map.groupBy(events, (event) => event.org_id))
        for (const onWindow of listeners.get(org_id) ?? []) onWindow({ from: xid, to, events: ofOrg })
    return { epoch: found.epoch, xid: to }
  }
  const keepLooking = async (first: Horizon): Promise<void> => {
    let horizon = first
    while (listeners.size > 0) {
      await interruptibleSleep(clock, PERIOD_MS, never)
      const next = look(horizon)
      reached = next
      try {
        horizon = await next
      } catch (error) {
        log.warn({ error }, 'new events could not be read for their streams; will retry')
        reached = Promise.resolve(horizon)
        await interruptibleSleep(clock, RETRY_MS, never)
      }
    }
    reached = null
  }
  const start = (): Promise<Horizon> => {
    const first = db.asSystem((q) => eventWindows.horizon(q))
    first.then(keepLooking, () => {
      reached = null
    })
    return first
  }
  return {
    async subscribe(org, onWindow) {
      const ofOrg = listeners.get(org) ?? new Set()
      // A look that is under way doesn't ask for this organization, so the stream begins after it.
      let begun: Horizon | null = null
      const listener: OnWindow = (window) => {
        if (begun !== null) onWindow(window)
      }
      listeners.set(org, ofOrg.add(listener))
      const stop = (): void => {
        ofOrg.delete(listener)
        if (ofOrg.size === 0 && listeners.get(org) === ofOrg) listeners.delete(org)
      }
      try {
        reached ??= start()
        begun = await reached
        return { epoch: begun.epoch, from: begun.xid, stop }
      } catch (error) {
        stop()
        throw error
      }
    },
  }
}

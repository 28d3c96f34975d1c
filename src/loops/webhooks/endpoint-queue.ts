/**
 * What a process holds of a webhook's deliveries: the next ones, by lane. In a lane, one is sent at a time, and only once the result of
 * the one before is stored. A failed one blocks its lane: those behind it are forgotten, and read again once it has ended.
 */
import { asId, type EventId, type WebhookId } from '../../domain/ids.ts'
import { NIL_UUID } from '../../lib/uuid.ts'
import type { Place, WaitingDelivery, Wanted } from '../../store/webhooks/deliveries.ts'

/** How many deliveries of a webhook are sent at the same time. An endpoint whose latest attempt failed gets one. */
export const IN_FLIGHT_MAX = 8
/** How many lanes may wait for another attempt. Beyond that, the endpoint is failing as a whole, and no others are tried. */
const BLOCKED_MAX = 100
/** After so many failures in a row, a success means that the endpoint is back, and all that waits is tried at once. */
const OUTAGE_FAILURES = 10

const START: Place = { place: Number.MIN_SAFE_INTEGER, id: asId<EventId>(NIL_UUID) }

type Lane = {
  /** In their order. The first one is sent first. */
  deliveries: WaitingDelivery[]
  /** When the first one is tried again, in milliseconds since 1970. Null: it has not failed. */
  dueAtMs: number | null
  isSending: boolean
}

export type EndpointQueue = ReturnType<typeof makeEndpointQueue>

/** Makes the queue of a webhook, which first wants to read from the beginning. */
export function makeEndpointQueue(webhook_id: WebhookId) {
  const lanes = new Map<string, Lane>()
  let after = START
  let hasMore = true
  let held = 0
  let sending = 0
  let blocked = 0
  let failuresInRow = 0

  const restart = (): void => {
    after = START
    hasMore = true
  }
  return {
    /** How many are being sent. */
    get sending() {
      return sending
    },
    /** Whether there is nothing to send or to read. */
    get isIdle() {
      return held === 0 && !hasMore
    },
    /** Deliveries were added in the database. */
    expectMore(): void {
      hasMore = true
    },
    /** What to read, so that about `size` deliveries are held. Null: nothing now. */
    wanted(size: number): Wanted | null {
      if (!hasMore || blocked >= BLOCKED_MAX || held > size / 2) return null
      return { webhook_id, after, count: size - Math.floor(size / 2) }
    },
    /** Takes in what was read. `count` is how many were wanted. */
    add(read: readonly WaitingDelivery[], count: number): void {
      hasMore = read.length === count
      for (const delivery of read) {
        after = { place: delivery.place, id: delivery.id }
        const lane = lanes.get(delivery.lane)
        if (lane === undefined) {
          const dueAtMs = delivery.next_attempt_at?.getTime() ?? null
          lanes.set(delivery.lane, { deliveries: [delivery], dueAtMs, isSending: false })
          if (dueAtMs !== null) blocked += 1
        } else if (lane.dueAtMs !== null || lane.deliveries.some(({ id }) => id === delivery.id)) continue
        else lane.deliveries.push(delivery)
        held += 1
      }
    },
    /** Takes the next delivery to send. Null: none now. */
    next(nowMs: number): WaitingDelivery | null {
      if (sending >= (failuresInRow > 0 ? 1 : IN_FLIGHT_MAX)) return null
      for (const [key, lane] of lanes) {
        const [first] = lane.deliveries
        if (first === undefined || lane.isSending || (lane.dueAtMs ?? nowMs) > nowMs) continue
        lane.isSending = true
        sending += 1
        lanes.delete(key) // the other lanes come first next time
        lanes.set(key, lane)
        return first
      }
      return null
    },
    /** When the next blocked lane will be due, in milliseconds since 1970. Null: none will. */
    dueAtMs(nowMs: number): number | null {
      let earliest: number | null = null
      for (const { dueAtMs } of lanes.values())
        if (dueAtMs !== null && dueAtMs > nowMs && (earliest === null || dueAtMs < earliest)) earliest = dueAtMs
      return earliest
    },
    /** The result of an attempt is stored. `retryAt` null: the delivery has ended. */
    settle(delivery: WaitingDelivery, { retryAt, hasFailed }: { retryAt: Date | null; hasFailed: boolean }): void {
      sending -= 1
      const isBack = !hasFailed && failuresInRow >= OUTAGE_FAILURES
      failuresInRow = hasFailed ? failuresInRow + 1 : 0
      if (isBack) for (const one of lanes.values()) if (one.dueAtMs !== null) one.dueAtMs = 0
      const lane = lanes.get(delivery.lane)
      if (lane === undefined) return
      lane.isSending = false
      const wasBlocked = lane.dueAtMs !== null
      const [, ...rest] = lane.deliveries
      if (retryAt !== null) {
        held -= rest.length
        if (!wasBlocked) blocked += 1
        lane.deliveries = [delivery]
        lane.dueAtMs = retryAt.getTime()
        return
      }
      held -= 1
      lane.deliveries = rest
      lane.dueAtMs = null
      if (rest.length === 0) lanes.delete(delivery.lane)
      if (!wasBlocked) return
      blocked -= 1
      restart()
    },
    /** Forgets what is held and not being sent, to read it again. */
    forget(): void {
      for (const [key, lane] of lanes) {
        const kept = lane.isSending ? 1 : 0
        held -= lane.deliveries.length - kept
        lane.deliveries = lane.deliveries.slice(0, kept)
        if (kept === 1) continue
        if (lane.dueAtMs !== null) blocked -= 1
        lanes.delete(key)
      }
      restart()
    },
  }
}

import type { Caller } from '../../domain/orgs/caller.ts'
import { parsePosition, type EventPosition } from '../../domain/events/event-position.ts'
import { SYSTEM_ACTOR_KEY } from '../../domain/orgs/caller.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import { untilSettled } from '../events/settled-events.ts'
import * as eventWindows from '../../store/events/event-windows.ts'
import type { BaseDeps } from '../deps.ts'
import { acquireStreamPermit, TIME_IS_OVER, type StreamPermitDeps } from './stream-permit.ts'
import type { EventFeed, EventWindow, WindowEvent } from '../events/event-feed.ts'

export type StreamDeps = Pick<BaseDeps, 'db' | 'clock'> & StreamPermitDeps & { readonly eventFeed: EventFeed }

/** Which events a stream has. Null: any. Both ends of the time range are inclusive. */
export type StreamFilter = {
  readonly event_type: string | null
  readonly category: string | null
  readonly sandbox_id: string | null
  readonly actor: string | null
  readonly since: Date | null
  readonly until: Date | null
}

export type StreamedEvent = { readonly event: WindowEvent; readonly position: EventPosition }

/** The longest time of a timer. */
const LIMIT_MAX_MS = 2 ** 31 - 1
/** How many events are read at once for a client that comes back. */
const PAGE = 500
/** How many events wait for a slow client. Beyond that they are read again when it has caught up. */
const WAITING_MAX = 2_000

/**
 * Follows the events of the organization. None is missing or comes twice, and those of one sandbox are in the order in
 * which they happened. With the position of an event, begins after that one, else with what is committed from now on.
 * Throws `rate_limited`, and `invalid_request` for a position that is malformed or of another database. The stream ends
 * at the end of its time range.
 */
export async function streamEvents(
  deps: StreamDeps,
  caller: Caller,
  {
    filter,
    after,
    signal,
  }: { readonly filter: StreamFilter; readonly after: string | null; readonly signal: AbortSignal },
): Promise<AsyncIterable<StreamedEvent>> {
  const position = after === null ? null : parsePosition(after)
  if (after !== null && position === null) throw invalidPosition(after, 'the id of an event of this stream')
  const leftMs =
    filter.until === null
      ? null
      : Math.min(LIMIT_MAX_MS, Math.max(0, filter.until.getTime() - deps.clock.now().getTime()))
  const permit = acquireStreamPermit(deps, caller, { limitMs: leftMs, signal })
  let feed: Feed | null = null
  try {
    const waiting = makeWaiting(permit.signal)
    feed = await deps.eventFeed.subscribe(caller.org_id, waiting.add)
    permit.signal.addEventListener('abort', feed.stop, { once: true }) // nobody may ever read the stream
    if (permit.signal.aborted) feed.stop() // the client left in the meantime
    if (position !== null && position.epoch !== feed.epoch)
      throw invalidPosition(
        after ?? '',
        'the id of an event since the database was restored; list the events to find what was missed',
      )
    const beginning = position === null ? await deps.db.asOrg(caller.org_id, (q) => eventWindows.snapshot(q)) : null
    return follow(deps, caller, { filter, position, beginning, feed, waiting, permit, clientGone: signal })
  } catch (error) {
    feed?.stop()
    permit.release()
    throw error
  }
}

function invalidPosition(seen: string, accepted: string): Error {
  return invalidRequest('last-event-id', seen, accepted)
}

type Feed = Awaited<ReturnType<EventFeed['subscribe']>>
type Waiting = ReturnType<typeof makeWaiting>

/** The windows that a stream has not delivered yet. */
function makeWaiting(signal: AbortSignal) {
  let windows: EventWindow[] = []
  let count = 0
  let hasOverflowed = false
  let wake: (() => void) | null = null
  signal.addEventListener('abort', () => wake?.(), { once: true })
  return {
    /** Adds a window. Null: events were left out. */
    add: (window: EventWindow | null): void => {
      count += window?.events.length ?? 0
      if (window === null || count > WAITING_MAX) hasOverflowed = true
      if (window === null || hasOverflowed) windows = []
      else windows.push(window)
      wake?.()
    },
    /** The next window. Null: the stream has ended, or events were dropped. */
    async next(): Promise<EventWindow | null> {
      while (windows.length === 0 && !hasOverflowed && !signal.aborted)
        await new Promise<void>((resolve) => {
          wake = resolve
        })
      if (hasOverflowed || signal.aborted) return null
      const window = windows.shift() ?? null
      count -= window?.events.length ?? 0
      return window
    },
    /** Forgets what was dropped. */
    reset(): void {
      windows = []
      count = 0
      hasOverflowed = false
    },
  }
}

type Following = {
  readonly filter: StreamFilter
  readonly position: EventPosition | null
  /** What had ended when the stream began is no part of it. */
  readonly beginning: eventWindows.Snapshot | null
  readonly feed: Feed
  readonly waiting: Waiting
  readonly permit: ReturnType<typeof acquireStreamPermit>
  readonly clientGone: AbortSignal
}

async function* follow(
  deps: StreamDeps,
  caller: Caller,
  { filter, position, beginning, feed: first, waiting, permit, clientGone }: Following,
): AsyncGenerator<StreamedEvent> {
  let feed = first
  const { epoch } = feed
  // The reader may never ask again.
  permit.signal.addEventListener('abort', () => feed.stop(), { once: true })
  /** Everything before is delivered. */
  let done = position?.to ?? feed.from
  const isAsked = (event: WindowEvent): boolean => beginning?.hasEnded(event.xact) !== true && matches(event, filter)
  const reading = { isAsked, epoch }
  /** Yields what was recorded up to a horizon and is not delivered yet. */
  const catchUp = async function* (to: bigint): AsyncGenerator<StreamedEvent> {
    if (done >= to) return
    yield* pages(deps, caller, { ...reading, window: { from: done, to, after: null } })
    done = to
  }
  try {
    if (position !== null) yield* pages(deps, caller, { ...reading, window: position })
    for (;;) {
      yield* catchUp(feed.from)
      for (let window = await waiting.next(); window !== null; window = await waiting.next()) {
        const { to, events } = window
        // A position of another process may be within the window. What is before it was delivered, and stays out of the next position.
        const from = window.from > done ? window.from : done
        for (const event of events)
          if (event.xact >= from && isAsked(event)) yield { event, position: { epoch, from, to, after: event.id } }
        if (to > done) done = to
      }
      if (permit.signal.aborted) {
        // The timer may fire a moment before the clock reaches the end of the range.
        if (permit.signal.reason === TIME_IS_OVER) yield* catchUp(await untilSettled(deps, caller.org_id, clientGone))
        return
      }
      feed.stop()
      waiting.reset()
      feed = await deps.eventFeed.subscribe(caller.org_id, waiting.add)
      if (feed.epoch !== epoch) return // the client is told why when it comes back
    }
  } finally {
    feed.stop()
    permit.release()
  }
}

async function* pages(
  { db }: Pick<StreamDeps, 'db'>,
  { org_id }: Caller,
  {
    isAsked,
    window: { from, to, after: first },
    epoch,
  }: {
    readonly isAsked: (event: WindowEvent) => boolean
    readonly window: { readonly from: bigint; readonly to: bigint; readonly after: string | null }
    readonly epoch: string
  },
): AsyncGenerator<StreamedEvent> {
  for (let after = first; ;) {
    const at = { from, to, after }
    const events = await db.asOrg(org_id, (q) => eventWindows.page(q, org_id, at, PAGE))
    for (const event of events) if (isAsked(event)) yield { event, position: { epoch, from, to, after: event.id } }
    if (events.length < PAGE) return
    after = events.at(-1)?.id ?? null
  }
}

function matches(event: WindowEvent, { event_type, category, sandbox_id, actor, since, until }: StreamFilter): boolean {
  return (
    (event_type === null || event.event_type === event_type) &&
    (category === null || event.category === category) &&
    (sandbox_id === null || event.sandbox_id === sandbox_id) &&
    (actor === null || (event.actor_key ?? SYSTEM_ACTOR_KEY) === actor) &&
    (since === null || event.timestamp >= since) &&
    (until === null || event.timestamp <= until)
  )
}

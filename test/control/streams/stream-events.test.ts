import assert from 'node:assert/strict'
import { test } from 'node:test'
import { recordEvent } from '../../../src/control/events/record-event.ts'
import { makeEventFeed } from '../../../src/control/events/event-feed.ts'
import { streamEvents, type StreamedEvent, type StreamFilter } from '../../../src/control/streams/stream-events.ts'
import { formatPosition } from '../../../src/domain/events/event-position.ts'
import { SYSTEM_ACTOR } from '../../../src/domain/orgs/caller.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { randomBelow, systemRandom } from '../../../src/lib/random.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { waitUntil } from '../../support/wait.ts'

const ALL: StreamFilter = { event_type: null, category: null, sandbox_id: null, actor: null, since: null, until: null }
const WRITERS = 12
const EVENTS_EACH = 40
const READERS = 6
/** The length of a stream that ends by itself. What is recorded meanwhile is in time, also beside a full load. */
const RANGE_MS = 2_000

/** Records an event whose transaction is open for a while before and after. Rolls some of them back. */
async function record({ deps, caller }: TestControl, range: string): Promise<boolean> {
  const { org_id } = caller
  const isKept = randomBelow(systemRandom, 5) > 0
  try {
    await deps.db.transaction(org_id, async (tx) => {
      await tx.query({ text: 'SELECT pg_current_xact_id()' })
      await systemClock.sleep(randomBelow(systemRandom, 12))
      const payload = { range }
      await recordEvent(deps, tx, { org_id, actor: SYSTEM_ACTOR, event_type: 'network_range_allowed', payload })
      await systemClock.sleep(randomBelow(systemRandom, 12))
      if (!isKept) throw new Error('rolled back')
    })
  } catch (error) {
    if (isKept) throw error
  }
  return isKept
}

test('streams miss no event and repeat none, each writer in its order, while many commit and readers come back', async (t) => {
  const control = await makeTestControl({})
  const { deps, caller } = control
  const done = new AbortController()
  t.after(() => {
    done.abort()
    return control.close()
  })

  /** Reads until the end, and reconnects after a few events. */
  async function read(): Promise<readonly string[]> {
    const seen: string[] = []
    let after: string | null = null
    let isFirst = true
    while (!done.signal.aborted) {
      const one = new AbortController()
      const signal = AbortSignal.any([done.signal, one.signal])
      let left = 1 + randomBelow(systemRandom, 60)
      const events = await streamEvents(deps, caller, { filter: ALL, after, signal })
      if (isFirst) ready += 1
      isFirst = false
      for await (const { event, position } of events) {
        seen.push(Object(event.payload).range)
        if (seen.at(-1) === 'last') hasLast += 1
        after = formatPosition(position)
        if (--left === 0) break
      }
      one.abort()
      if (after === null) continue
      await systemClock.sleep(randomBelow(systemRandom, 30))
    }
    return seen
  }
  let ready = 0
  let hasLast = 0
  const readers = Array.from({ length: READERS }, () => read())
  await waitUntil(() => ready === READERS)
  const kept = new Set<string>()
  await Promise.all(
    Array.from({ length: WRITERS }, async (_, writer) => {
      for (let n = 0; n < EVENTS_EACH; n++) {
        const range = `${String(writer)}-${String(n)}`
        if (await record(control, range)) kept.add(range)
      }
    }),
  )
  const last = async (): Promise<void> => {
    await deps.db.transaction(caller.org_id, async (tx) => {
      const payload = { range: 'last' }
      await recordEvent(deps, tx, {
        org_id: caller.org_id,
        actor: SYSTEM_ACTOR,
        event_type: 'network_range_allowed',
        payload,
      })
    })
  }
  await last()
  // An open transaction of any other test holds back the end of the stream.
  await waitUntil(() => hasLast === READERS, 60_000)
  done.abort()
  const [first = [], ...others] = await Promise.all(readers)
  assert.equal(first.at(-1), 'last')
  assert.deepEqual(new Set(first), new Set([...kept, 'last']))
  assert.equal(first.length, kept.size + 1, 'none twice')
  const ofWriter = (seen: readonly string[], writer: number) =>
    seen.filter((range) => range.startsWith(`${String(writer)}-`))
  for (const seen of [first, ...others]) {
    assert.deepEqual(seen.toSorted(), first.toSorted(), 'every reader has all of them')
    // A writer records one after the other.
    for (let writer = 0; writer < WRITERS; writer++) {
      const numbers = ofWriter(seen, writer).map((range) => Number(range.split('-')[1]))
      assert.deepEqual(
        numbers,
        numbers.toSorted((a, b) => a - b),
      )
    }
  }
})

test('a stream is filtered as the list, begins after any position, and refuses one of another database', async (t) => {
  const control = await makeTestControl({})
  const { deps, caller } = control
  const stop = new AbortController()
  t.after(() => {
    stop.abort()
    return control.close()
  })
  const open = async (filter: Partial<StreamFilter>, after: string | null = null) =>
    (await streamEvents(deps, caller, { filter: { ...ALL, ...filter }, after, signal: stop.signal }))[
      Symbol.asyncIterator
    ]()
  const all = await open({})
  const mine = await open({ actor: caller.api_key_id })
  const other = (await open({ category: 'api_key' })).next()
  const write = (range: string, actor = SYSTEM_ACTOR): Promise<unknown> =>
    deps.db.transaction(caller.org_id, (tx) =>
      recordEvent(deps, tx, { org_id: caller.org_id, actor, event_type: 'network_range_allowed', payload: { range } }),
    )
  // A generator only reads once it is asked.
  const firsts = [all.next(), mine.next()]
  await write('a')
  await write('b', caller.actor)
  const [first, own] = await Promise.all(firsts)
  assert.equal(Object(first?.value.event.payload).range, 'a')
  assert.equal(Object(own?.value.event.payload).range, 'b')
  const position = formatPosition(first?.value.position)
  await write('c')
  const resumed = await open({}, position)
  const rest = [await resumed.next(), await resumed.next()].map(({ value }) => Object(value.event.payload).range)
  assert.deepEqual(rest, ['b', 'c'])
  await write('late')
  const soon = await open({ until: new Date(Date.now() + 100) }, position)
  const untilNow = [await soon.next(), await soon.next(), await soon.next()].map(({ value }) => Object(value.event.payload).range) // prettier-ignore
  assert.deepEqual(untilNow, ['b', 'c', 'late'])
  assert.equal((await soon.next()).done, true)
  const ended = await open({ until: new Date(first?.value.event.timestamp.getTime() - 1) }, position)
  assert.deepEqual(await ended.next(), { done: true, value: undefined })
  const elsewhere = position.replace(/^[^.]+/, '1-1-1')
  await assert.rejects(open({}, elsewhere), { code: 'invalid_request', message: /since the database was restored/ })
  for (const bad of ['x', `${position}x`, position.replace(/\.\d+\.\d+\./, '.9.8.')])
    await assert.rejects(open({}, bad), { code: 'invalid_request', message: /last-event-id/ })
  const revoked = { event_type: 'api_key_revoked', payload: { api_key_id: caller.api_key_id, name: 'later' } } as const
  await deps.db.transaction(caller.org_id, (tx) =>
    recordEvent(deps, tx, { org_id: caller.org_id, actor: SYSTEM_ACTOR, ...revoked }),
  )
  assert.equal((await other).value.event.event_type, 'api_key_revoked', 'none of the events before it')
})

test('a stream has all events up to the end of its range, also when its timer fires before the clock is there', async (t) => {
  const control = await makeTestControl({})
  const { deps, caller } = control
  t.after(() => control.close())
  const opened = systemClock.now()
  const early = { ...deps, clock: { ...systemClock, now: () => opened } }
  const filter = { ...ALL, until: new Date(opened.getTime() + RANGE_MS) }
  const { signal } = new AbortController()
  const events = await streamEvents(early, caller, { filter, after: null, signal })
  await deps.db.transaction(caller.org_id, (tx) =>
    recordEvent(deps, tx, {
      org_id: caller.org_id,
      actor: SYSTEM_ACTOR,
      event_type: 'network_range_allowed',
      payload: { range: 'in time' },
    }),
  )
  await systemClock.sleep(RANGE_MS) // the stream's own timer began before
  const ranges: unknown[] = []
  for await (const { event } of events) ranges.push(Object(event.payload).range)
  assert.deepEqual(ranges, ['in time'])
})

test('a client that reads slowly gets all events in the end', async (t) => {
  const control = await makeTestControl({})
  const { deps, caller } = control
  const stop = new AbortController()
  t.after(() => {
    stop.abort()
    return control.close()
  })
  const many = 5_000
  let arrived = 0
  const eventFeed: typeof deps.eventFeed = {
    subscribe: (org, onWindow) =>
      deps.eventFeed.subscribe(org, (window) => {
        arrived += window?.events.length ?? many // null: there were more than are passed on
        onWindow(window)
      }),
  }
  const events = (
    await streamEvents({ ...deps, eventFeed }, caller, { filter: ALL, after: null, signal: stop.signal })
  )[Symbol.asyncIterator]()
  const first = events.next()
  for (let n = 0; n < many; n += 500)
    await deps.db.transaction(caller.org_id, async (tx) => {
      for (let at = n; at < n + 500; at++)
        await recordEvent(deps, tx, { org_id: caller.org_id, actor: SYSTEM_ACTOR, event_type: 'network_range_allowed', payload: { range: String(at) } }) // prettier-ignore
    })
  await waitUntil(() => arrived >= many)
  const seen = [Object((await first).value.event.payload).range]
  while (seen.length < many) seen.push(Object((await events.next()).value.event.payload).range)
  assert.deepEqual(
    seen,
    Array.from({ length: many }, (_, n) => String(n)),
  )
})

test('a client that comes back to a process that is behind gets no event twice', async (t) => {
  const control = await makeTestControl({})
  const { deps, caller } = control
  const { org_id } = caller
  const stop = new AbortController()
  t.after(() => {
    stop.abort()
    return control.close()
  })
  /** The feed of another process, which looks when it is told to. */
  const looks: (() => void)[] = []
  const sleep = (_ms: number): Promise<void> => new Promise((resolve) => looks.push(resolve))
  const behind = { ...deps, eventFeed: makeEventFeed({ ...deps, clock: { ...systemClock, sleep } }) }
  const open = async (from: typeof deps, after: string | null = null) =>
    (await streamEvents(from, caller, { filter: ALL, after, signal: stop.signal }))[Symbol.asyncIterator]()
  const write = (id: string, range: string): Promise<unknown> =>
    deps.db.transaction(org_id, (tx) => {
      const event = { org_id, actor: SYSTEM_ACTOR, event_type: 'network_range_allowed', payload: { range } } as const
      return recordEvent({ ...deps, uuids: { ...deps.uuids, next: () => id } }, tx, event)
    })
  await open(behind) // so that it has looked once
  const ahead = await open(deps)
  const arriving = ahead.next()
  const early = deps.uuids.next()
  await write(deps.uuids.next(), 'first')
  const { event, position } = (await arriving).value
  assert.equal(Object(event.payload).range, 'first')
  await write(early, 'second')
  const resumed = await open(behind, formatPosition(position))
  const next = resumed.next()
  let second: StreamedEvent | undefined
  void next.then(({ value }) => {
    second = value
  })
  await waitUntil(() => {
    looks.shift()?.()
    return second !== undefined
  }, 60_000)
  assert.ok(second)
  assert.equal(Object(second.event.payload).range, 'second')
  const again = await open(deps, formatPosition(second.position))
  const third = again.next()
  await write(deps.uuids.next(), 'third')
  assert.equal(Object((await third).value.event.payload).range, 'third')
})

test('a stream begins with what is committed after it, although an open transaction holds back what was recorded before', async (t) => {
  const control = await makeTestControl({})
  const { deps, caller } = control
  const { org_id } = caller
  const stop = new AbortController()
  t.after(() => {
    stop.abort()
    return control.close()
  })
  const write = (range: string): Promise<unknown> =>
    deps.db.transaction(org_id, (tx) =>
      recordEvent(deps, tx, { org_id, actor: SYSTEM_ACTOR, event_type: 'network_range_allowed', payload: { range } }),
    )
  let release = (): void => undefined
  const held = new Promise<void>((resolve) => (release = resolve))
  let isOpen = false
  const holding = deps.db.transaction(org_id, async (tx) => {
    await tx.query({ text: 'SELECT pg_current_xact_id()' })
    isOpen = true
    await held
    await recordEvent(deps, tx, { org_id, actor: SYSTEM_ACTOR, event_type: 'network_range_allowed', payload: { range: 'held' } }) // prettier-ignore
  })
  await waitUntil(() => isOpen)
  await write('before')
  const events = (await streamEvents(deps, caller, { filter: ALL, after: null, signal: stop.signal }))[
    Symbol.asyncIterator
  ]()
  const both = [events.next(), events.next()]
  await write('after')
  release()
  await holding
  const seen = (await Promise.all(both)).map(({ value }) => String(Object(value.event.payload).range))
  assert.deepEqual(seen.toSorted(), ['after', 'held'])
})

test('a client that leaves while its stream is being opened leaves the feed too', async (t) => {
  const control = await makeTestControl({})
  t.after(() => control.close())
  const { deps, caller } = control
  const client = new AbortController()
  let stops = 0
  const eventFeed: typeof deps.eventFeed = {
    subscribe() {
      client.abort()
      return Promise.resolve({ epoch: 'e', from: 1n, stop: () => (stops += 1) })
    },
  }
  await streamEvents({ ...deps, eventFeed }, caller, { filter: ALL, after: null, signal: client.signal })
  assert.ok(stops > 0, 'nobody reads the stream, so nothing else ends it')
})

test('a stream that could not be opened leaves the feed', async (t) => {
  const control = await makeTestControl({})
  t.after(() => control.close())
  const { deps, caller } = control
  let stops = 0
  const eventFeed: typeof deps.eventFeed = {
    subscribe: () => Promise.resolve({ epoch: 'e', from: 1n, stop: () => (stops += 1) }),
  }
  const db: typeof deps.db = { ...deps.db, asOrg: () => Promise.reject(new Error('the database is down')) }
  const { signal } = new AbortController()
  const opening = streamEvents({ ...deps, db, eventFeed }, caller, { filter: ALL, after: null, signal })
  await assert.rejects(opening, /the database is down/)
  assert.ok(stops > 0, 'else the feed looks for events for ever')
})

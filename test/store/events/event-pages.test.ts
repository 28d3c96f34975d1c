import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import fc from 'fast-check'
import { listEvents, type EventsInput } from '../../../src/control/events/read-events.ts'
import { EVENT_TYPES, type EventCategory, type EventType } from '../../../src/domain/events/event-types.ts'
import type { OrgId } from '../../../src/domain/ids.ts'
import { OPERATOR_ACTOR, SYSTEM_ACTOR, type Actor, type Caller } from '../../../src/domain/orgs/caller.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { minUuidAt } from '../../../src/lib/uuid.ts'
import * as eventPages from '../../../src/store/events/event-pages.ts'
import * as events from '../../../src/store/events/events.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addOrg } from '../../support/orgs.ts'

// Filters of GET /v1/events, compared with a filter in JavaScript, and by the plans of their statements.

let control: TestControl
let stranger: Caller
before(async () => {
  control = await makeTestControl()
  // An ANALYZE of its own that began before the events came, and ended after the test's, would make plans for a table without them.
  await control.asOwner('ALTER TABLE events SET (autovacuum_enabled = false)')
  stranger = await addOrg(control.deps, 'stranger')
})
after(() => control.close())

const START_MS = systemClock.now().getTime() - 10 * 86_400_000
const uuid = (n: number): string => `00000000-0000-7000-8000-${String(n).padStart(12, '0')}`
const KEYS: readonly Actor[] = [1, 2].map((n) => ({ kind: 'api_key', api_key_id: uuid(n), name: 'k' }))
const USER: Actor = { kind: 'user', user_id: uuid(3), label: 'u', redacted_email: 'u***' }
const ACTORS: readonly Actor[] = [...KEYS, USER, OPERATOR_ACTOR, SYSTEM_ACTOR]
const SANDBOXES = [uuid(11), uuid(12), null]
const TYPES: readonly EventType[] = [
  'sandbox_running',
  'sandbox_stopped',
  'sandbox_deleted',
  'api_key_created',
  'quota_changed',
]

type Made = {
  readonly id: string
  readonly event_type: EventType
  readonly sandbox_id: string | null
  readonly actor: Actor
  readonly timestamp: Date
}

function keyOf(actor: Actor): string {
  if (actor.kind === 'api_key') return actor.api_key_id
  if (actor.kind === 'user') return actor.user_id
  return actor.kind === 'system' ? actor.code : actor.key_id
}

/** Inserts events without regard to their payloads. */
async function insert(org_id: string, made: readonly Made[]): Promise<void> {
  await control.deps.db.asSystem((q) =>
    q.query({
      text: `INSERT INTO events (id, org_id, timestamp, category, event_type, sandbox_id, actor, payload)
             SELECT id, $1, timestamp, category, event_type, sandbox_id, actor, '{}'
             FROM json_to_recordset($2::json) AS r(id uuid, timestamp timestamptz, category text, event_type text,
               sandbox_id uuid, actor json)`,
      values: [org_id, JSON.stringify(made.map((one) => ({ ...one, category: EVENT_TYPES[one.event_type].category })))],
    }),
  )
}

/** The ids of all pages. */
async function readAll(caller: Caller, input: Omit<EventsInput, 'cursor'>): Promise<readonly string[]> {
  const seen: string[] = []
  let cursor: string | null = null
  do {
    const page = await listEvents(control.deps, caller, { ...input, cursor })
    assert.ok(page.items.length <= input.limit)
    seen.push(...page.items.map(({ id }) => id))
    cursor = page.nextCursor
  } while (cursor !== null)
  return seen
}

const optional = <T>(values: readonly T[]) => fc.option(fc.constantFrom(...values), { nil: null, freq: 2 })

test('every combination of filters lists exactly the events that match, in pages of any size', async () => {
  const made = fc.array(
    fc.record({
      type: fc.constantFrom(...TYPES),
      sandbox: fc.constantFrom(...SANDBOXES),
      actor: fc.constantFrom(...ACTORS),
    }),
    { minLength: 10, maxLength: 60 },
  )
  const filters = fc.record({
    event_type: optional(TYPES),
    category: optional<EventCategory>(['sandbox', 'api_key', 'quota', 'volume']),
    sandbox_id: optional([uuid(11), uuid(12), uuid(99)]),
    actor: optional([...ACTORS.map(keyOf), uuid(98)]),
    limit: fc.integer({ min: 1, max: 9 }),
    range: fc.option(fc.tuple(fc.nat(60), fc.nat(60)), { nil: null, freq: 2 }),
  })
  let matched = 0
  let orgs = 0
  const property = fc.asyncProperty(made, fc.array(filters, { minLength: 4, maxLength: 8 }), async (drawn, asked) => {
    const caller = await addOrg(control.deps, `org-${String(++orgs)}`)
    const startMs = START_MS + orgs * 3_600_000
    const all = drawn.map(({ type, sandbox, actor }, n): Made => {
      const timestamp = new Date(startMs + n * 1_000)
      return {
        id: minUuidAt(timestamp).replace(/0000$/, '0001'),
        event_type: type,
        sandbox_id: sandbox,
        actor,
        timestamp,
      }
    })
    await insert(caller.org_id, all)
    await insert(stranger.org_id, all.map((one) => ({ ...one, id: one.id.replace(/0001$/, '0002') }))) // prettier-ignore
    for (const { range, limit, ...filter } of asked) {
      const [since, until] = range === null ? [null, null] : range.map((n) => new Date(startMs + n * 1_000))
      const expected = all.filter(
        (one) =>
          (filter.event_type === null || one.event_type === filter.event_type) &&
          (filter.category === null || EVENT_TYPES[one.event_type].category === filter.category) &&
          (filter.sandbox_id === null || one.sandbox_id === filter.sandbox_id) &&
          (filter.actor === null || keyOf(one.actor) === filter.actor) &&
          (!since || one.timestamp >= since) &&
          (!until || one.timestamp <= until),
      )
      matched += expected.length
      const found = await readAll(caller, { ...filter, since: since ?? null, until: until ?? null, limit })
      assert.deepEqual(found, expected.map(({ id }) => id).toReversed(), JSON.stringify(filter))
    }
  })
  await fc.assert(property, { numRuns: 40 })
  assert.ok(matched > 100, String(matched))
})

test('a page reads few events whatever the filter; with several filters it goes on where it stopped', async () => {
  const { deps, caller } = control
  const made = Array.from({ length: 12_000 }, (_, n): Made => {
    const timestamp = new Date(START_MS - 86_400_000 + n * 1_000)
    const rare = n === 10
    return {
      id: minUuidAt(timestamp).replace(/0000$/, '0001'),
      event_type: rare ? 'sandbox_deleted' : 'sandbox_running',
      sandbox_id: rare ? uuid(12) : uuid(11),
      actor: (rare ? KEYS[1] : n % 2 === 0 ? KEYS[0] : SYSTEM_ACTOR) ?? SYSTEM_ACTOR,
      timestamp,
    }
  })
  await insert(control.caller.org_id, made)
  await control.asOwner('ANALYZE events')
  const nothing = { event_type: null, since: null, until: null, limit: 20 }
  // PostgreSQL may walk all events by their ids where most of them match. Then it reads those of the property above, too.
  const others = await countOthers(control.caller.org_id)
  for (const filter of [
    { sandbox_id: uuid(12) },
    { actor: uuid(2) },
    { event_type: 'sandbox_deleted' },
    { category: 'quota' as const },
    { actor: 'operator' },
    { sandbox_id: uuid(11) },
    { category: 'sandbox' as const },
    { actor: 'sandyard' },
    { sandbox_id: uuid(11), actor: uuid(2) },
  ]) {
    const read = await rowsRead({ ...ANY, ...filter })
    assert.ok(read <= 3_000 + others, `${JSON.stringify(filter)} read ${String(read)} events`)
  }
  const both = { ...nothing, sandbox_id: uuid(11), actor: uuid(2) }
  const first = await listEvents(deps, caller, { ...both, cursor: null })
  assert.deepEqual(first.items, [])
  assert.notEqual(first.nextCursor, null, 'an empty page although more may follow')
  assert.deepEqual(await readAll(caller, both), [])
  const rare = { ...nothing, actor: uuid(2), sandbox_id: uuid(12) }
  assert.deepEqual(await readAll(caller, rare), [made[10]?.id])
})

async function countOthers(org: OrgId): Promise<number> {
  const text = 'SELECT count(*)::int AS others FROM events WHERE org_id <> $1'
  const { rows } = await control.deps.db.asSystem((q) => q.query<{ readonly others: number }>({ text, values: [org] }))
  return rows[0]?.others ?? 0
}

const ANY: eventPages.EventFilter = {
  event_type: null,
  category: null,
  sandbox_id: null,
  actor: null,
  since: null,
  until: null,
  fromId: null,
  toId: null,
  before: null,
}

type Plan = {
  readonly 'Relation Name'?: string
  readonly 'Actual Rows': number
  readonly 'Actual Loops': number
  readonly 'Rows Removed by Filter'?: number
  readonly Plans?: readonly Plan[]
}

/** How many events a page reads, by the plans of its statements. */
async function rowsRead(filter: eventPages.EventFilter): Promise<number> {
  let read = 0
  const count = (plan: Plan): void => {
    if (plan['Relation Name'] === 'events')
      read += (plan['Actual Rows'] + (plan['Rows Removed by Filter'] ?? 0)) * plan['Actual Loops']
    for (const part of plan.Plans ?? []) count(part)
  }
  const { org_id } = control.caller
  await control.deps.db.asOrg(org_id, async (q) => {
    const explained: typeof q = {
      async query(statement) {
        const text = `EXPLAIN (ANALYZE, FORMAT JSON) ${statement.text}`
        const { rows } = await q.query<{ 'QUERY PLAN': readonly [{ readonly Plan: Plan }] }>({ ...statement, text })
        for (const row of rows) count(row['QUERY PLAN'][0].Plan)
        return q.query(statement)
      },
    }
    await eventPages.page(explained, org_id, filter, 21)
  })
  return read
}

test('a reader of one event gets the columns of a page', async () => {
  const { deps, caller } = control
  const { items } = await listEvents(deps, caller, {
    event_type: null,
    since: null,
    until: null,
    limit: 1,
    cursor: null,
  })
  const [item] = items
  assert.ok(item)
  assert.deepEqual(await deps.db.asOrg(caller.org_id, (q) => events.find(q, caller.org_id, item.id)), item)
})

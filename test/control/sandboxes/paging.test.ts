import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import fc from 'fast-check'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import { listEvents } from '../../../src/control/events/read-events.ts'
import { listSandboxes } from '../../../src/control/sandboxes/read-sandboxes.ts'
import type { SandboxId } from '../../../src/domain/ids.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { onServer } from '../../support/postgres.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'

let control: TestControl
before(async () => {
  control = await makeTestControl()
})
after(() => control.close())

const never = new AbortController().signal

async function create(labels: Readonly<Record<string, string>>, env = PLAIN_SPEC.env): Promise<SandboxId> {
  const spec = { ...PLAIN_SPEC, labels, env }
  const registry = { mode: 'auto' } as const
  const input = { spec, name: null, slug: null, registry, start: false, waitMs: null, signal: never }
  return (await createSandbox(control.deps, control.caller, input)).id
}

type Change = { readonly kind: 'create' } | { readonly kind: 'delete'; readonly index: number }
const changes = fc.array(
  fc.oneof(
    fc.constant<Change>({ kind: 'create' }),
    fc.nat().map((index): Change => ({ kind: 'delete', index })),
  ),
  { maxLength: 3 },
)

test('paging neither repeats nor misses a sandbox, with and without labels, while others come and go', async () => {
  const { deps, caller } = control
  let runs = 0
  const property = fc.asyncProperty(
    fc.integer({ min: 0, max: 9 }),
    fc.integer({ min: 1, max: 4 }),
    fc.array(changes, { minLength: 12, maxLength: 12 }),
    fc.constantFrom<'none' | 'one' | 'two'>('none', 'one', 'two'),
    async (count, limit, steps, filter) => {
      const mine = { run: String(++runs) }
      const both = { ...mine, kind: 'even' }
      const wanted = filter === 'none' ? {} : filter === 'one' ? mine : both
      const isWanted = (index: number): boolean => filter !== 'two' || index % 2 === 0
      const there: SandboxId[] = []
      for (let index = 0; index < count; index++) there.push(await create(isWanted(index) ? both : mine))
      const before = new Set(there.filter((_, index) => isWanted(index)))
      const deleted = new Set<SandboxId>()
      const seen: SandboxId[] = []
      let cursor: string | null = null
      for (let pages = 0; ; pages++) {
        const page = await listSandboxes(deps, caller, { cursor, limit, labels: wanted })
        assert.ok(page.items.length <= limit)
        seen.push(...page.items.map(({ id }) => id))
        cursor = page.nextCursor
        if (cursor === null) break
        const now = (steps[pages] ?? []).map(async (change) => {
          if (change.kind === 'create') return void (await create(both))
          const victim = there[change.index % Math.max(1, there.length)]
          if (victim === undefined || deleted.has(victim)) return
          deleted.add(victim)
          await deleteSandbox(deps, caller, { id: victim })
        })
        await Promise.all(now)
      }
      assert.equal(new Set(seen).size, seen.length, 'a sandbox came twice')
      for (const id of before) assert.ok(deleted.has(id) || seen.includes(id), 'a sandbox was missed')
      assert.deepEqual(seen, [...seen].sort().reverse(), 'the newest come first')
      if (filter !== 'none')
        assert.ok(
          seen.every((id) => before.has(id)),
          'a sandbox without the labels was listed',
        )
      for (const id of there) if (!deleted.has(id)) await deleteSandbox(deps, caller, { id })
    },
  )
  await fc.assert(property, { numRuns: 40 })
})

test('a page ends after a mebibyte of specifications, and the next page goes on from there', async () => {
  const { deps, caller, databaseUrl } = control
  const large = [{ key: 'LARGE', value: 'v'.repeat(600_000) }]
  const pair = { page: 'large', of: 'bytes' }
  const ids: SandboxId[] = []
  for (let n = 0; n < 5; n++) ids.unshift(await create(pair, large))
  const old = `UPDATE sandboxes SET projection_bytes = NULL WHERE id = '${ids[0] ?? ''}'` // of before migration 13
  await onServer(databaseUrl, (client) => client.query(old))
  for (const labels of [pair, { page: 'large' }, {}]) {
    const pages: string[][] = []
    let cursor: string | null = null
    do {
      const page = await listSandboxes(deps, caller, { cursor, limit: 100, labels })
      pages.push(page.items.map(({ id }) => id).filter((id) => ids.includes(id)))
      cursor = page.nextCursor
    } while (cursor !== null)
    assert.deepEqual(pages.slice(0, 3), [ids.slice(0, 2), ids.slice(2, 4), ids.slice(4)], JSON.stringify(labels))
  }
  for (const id of ids) await deleteSandbox(deps, caller, { id })
})

test('a list shows only sandboxes with all requested labels', async () => {
  const { deps, caller } = control
  const id = await create({ a: '1', b: '2', c: '3', d: '4' })
  await create({ a: '1', b: '2', c: 'x', d: '4' })
  const idsOf = async (labels: Readonly<Record<string, string>>): Promise<readonly string[]> =>
    (await listSandboxes(deps, caller, { cursor: null, limit: 100, labels })).items.map((item) => item.id)
  assert.equal((await idsOf({ a: '1', b: '2' })).length, 2)
  assert.deepEqual(await idsOf({ a: '1', c: '3' }), [id])
  assert.deepEqual(await idsOf({ a: '1', b: '2', c: '3', d: '4' }), [id])
  assert.deepEqual(await idsOf({ a: '1', b: '3' }), [])
  assert.deepEqual(await idsOf({ a: '2' }), [])
})

test('a page filtered by labels has the sandboxes that a check of each sandbox finds', async () => {
  const { deps, caller } = control
  const there: { readonly id: SandboxId; readonly labels: Readonly<Record<string, string>> }[] = []
  for (let index = 0; index < 60; index++) {
    const many = index % 5 === 0 ? Array.from({ length: 17 }, (_, n) => [`more${String(n)}`, '']) : []
    const few = [3, 4, 5, 7].map((factor) => [`by${String(factor)}`, String(index % factor === 0)])
    const labels = Object.fromEntries([...many, ...few])
    there.push({ id: await create(labels), labels })
  }
  const key = fc.constantFrom('by3', 'by4', 'by5', 'by7', 'more0', 'more16')
  const filters = fc.dictionary(key, fc.constantFrom('true', 'false', ''), { minKeys: 1, maxKeys: 4 })
  await fc.assert(
    fc.asyncProperty(filters, fc.integer({ min: 1, max: 9 }), async (wanted, limit) => {
      const seen: string[] = []
      let cursor: string | null = null
      do {
        const page = await listSandboxes(deps, caller, { cursor, limit, labels: wanted })
        seen.push(...page.items.map(({ id }) => id))
        cursor = page.nextCursor
      } while (cursor !== null)
      const matches = there.filter(({ labels }) =>
        Object.entries(wanted).every(([name, value]) => labels[name] === value),
      )
      assert.deepEqual(
        seen,
        matches.map(({ id }) => id).reverse(), // the newest first
      )
    }),
    { numRuns: 100 },
  )
  for (const { id } of there) await deleteSandbox(deps, caller, { id })
  const { rows } = await deps.db.asSystem((q) =>
    q.query({
      text: 'SELECT count(*) FROM sandbox_label_pairs WHERE sandbox_id = ANY($1)',
      values: [there.map(({ id }) => id)],
    }),
  )
  assert.deepEqual(rows, [{ count: 0 }], 'what is derived from labels goes with them')
})

test('a search for a rare combination of common labels takes several pages and finds every match', async () => {
  const { deps, caller, databaseUrl } = control
  const first = await create({ a3: '1', b3: '1', c3: '1' })
  await onServer(databaseUrl, async (q) => {
    await q.query(`SELECT set_config('sandyard.org', $1, false)`, [caller.org_id])
    await q.query(
      `WITH n AS (INSERT INTO sandboxes (id, org_id, name, slug, status, ephemeral, created_at, vcpus, memory_mib, abilities, spec, spec_projection, registry)
         SELECT uuidv7(), org_id, 'copy-' || n, 'copy-' || n, status, ephemeral, now(), vcpus, memory_mib, abilities, spec, spec_projection, registry
         FROM sandboxes, generate_series(1, 20000) n WHERE id = $1 RETURNING id, org_id, substr(name, 6)::int AS n)
       INSERT INTO sandbox_labels (org_id, key, value, sandbox_id)
       SELECT org_id, key, '1', id FROM n, unnest('{a3,b3,c3}'::text[]) WITH ORDINALITY AS k(key, i) WHERE n % 3 <> i - 1`,
      [first],
    )
  })
  let pages = 0
  const seen: string[] = []
  let cursor: string | null = null
  do {
    const input = { cursor, limit: 5, labels: { a3: '1', b3: '1', c3: '1' } }
    const page = await listSandboxes(deps, caller, input)
    seen.push(...page.items.map(({ id }) => id))
    cursor = page.nextCursor
    pages += 1
  } while (cursor !== null)
  assert.deepEqual(seen, [first])
  assert.ok(pages > 1, 'one request does not walk them all')
})

test('paging neither repeats nor misses an event while others are written', async () => {
  const { deps, caller } = control
  const input = { event_type: 'sandbox_created', since: null, until: null, cursor: null, limit: 7 }
  for (let index = 0; index < 20; index++) await create({})
  const all = await listEvents(deps, caller, { ...input, limit: 1_000 })
  const seen: string[] = []
  let cursor: string | null = null
  do {
    const page = await listEvents(deps, caller, { ...input, cursor })
    seen.push(...page.items.map((event) => event.id))
    cursor = page.nextCursor
    await create({})
  } while (cursor !== null)
  assert.deepEqual(seen, all.items.map((event) => event.id)) // prettier-ignore
})

test('a cursor of another list and text that is no cursor are refused by name', async () => {
  const { deps, caller } = control
  await Promise.all([create({}), create({})])
  const sandboxes = await listSandboxes(deps, caller, { cursor: null, limit: 1, labels: {} })
  const input = { event_type: null, since: null, until: null, limit: 1 }
  const events = await listEvents(deps, caller, { ...input, cursor: null })
  assert.ok(sandboxes.nextCursor !== null && events.nextCursor !== null)
  const refused = { code: 'invalid_request', details: { field: 'query.cursor' } }
  for (const cursor of [sandboxes.nextCursor, 'x', ''])
    await assert.rejects(listEvents(deps, caller, { ...input, cursor }), isRefusal(refused))
  for (const cursor of [events.nextCursor, 'x', ''])
    await assert.rejects(listSandboxes(deps, caller, { cursor, limit: 1, labels: {} }), isRefusal(refused))
})

function isRefusal(want: { readonly code: string; readonly details: { readonly field: string } }) {
  return (error: unknown): boolean => {
    assert.ok(error instanceof Error && 'code' in error && 'details' in error)
    assert.equal(error.code, want.code)
    assert.ok(typeof error.details === 'object' && error.details !== null && 'field' in error.details)
    assert.equal(error.details.field, want.details.field)
    return true
  }
}

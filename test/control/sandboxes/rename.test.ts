import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import { getSandbox } from '../../../src/control/sandboxes/read-sandboxes.ts'
import { renameSandbox } from '../../../src/control/sandboxes/rename-sandbox.ts'
import type { SandboxId } from '../../../src/domain/ids.ts'
import type { Sandbox } from '../../../src/domain/sandboxes/sandbox.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'

let control: TestControl
before(async () => {
  control = await makeTestControl()
})
after(() => control.close())

function create(name: string): Promise<Sandbox> {
  const { deps, caller } = control
  const how = { slug: null, registry: { mode: 'auto' }, start: false, waitMs: null, signal: null } as const
  return createSandbox(deps, caller, { spec: PLAIN_SPEC, name, ...how })
}

type Names = Pick<Sandbox, 'name' | 'slug'>
type Told = { readonly event_type: string; readonly payload: Names & { readonly from?: Names } }

/** The events of a sandbox, the oldest first. */
async function eventsOf(id: SandboxId): Promise<readonly Told[]> {
  const text = 'SELECT event_type, payload FROM events WHERE sandbox_id = $1 ORDER BY id'
  return (await control.deps.db.asSystem((q) => q.query<Told>({ text, values: [id] }))).rows
}

test('of renames at once, each event says what the names were before it and what they are after it', async () => {
  const { deps, caller } = control
  const { id, name, slug } = await create('first')
  const changes = Array.from({ length: 12 }, (_, n) => ({ [n % 2 === 0 ? 'name' : 'slug']: `changed-${String(n)}` }))
  await Promise.all(changes.map((change) => renameSandbox(deps, caller, { id }, change)))
  const [, ...renames] = await eventsOf(id)
  assert.equal(renames.length, changes.length)
  let was: Names = { name, slug }
  for (const { payload } of renames) {
    assert.deepEqual(payload.from, was)
    was = { name: payload.name, slug: payload.slug }
  }
  const { name: lastName, slug: lastSlug } = await getSandbox(deps, caller, { id })
  assert.deepEqual(was, { name: lastName, slug: lastSlug })
})

test('a rename to the names that a sandbox has already leaves no event', async () => {
  const { deps, caller } = control
  const { id, name, slug } = await create('the-same')
  await renameSandbox(deps, caller, { id }, { name })
  await renameSandbox(deps, caller, { id }, { name, slug })
  assert.deepEqual(
    (await eventsOf(id)).map(({ event_type }) => event_type),
    ['sandbox_created'],
  )
})

test('the event of a deletion has the names that the sandbox had last', async () => {
  const { deps, caller } = control
  const { id } = await create('renamed-meanwhile')
  const readSummary: typeof deps.readSummary = async (sought) => {
    const found = await deps.readSummary(sought)
    await renameSandbox(deps, caller, { id }, { name: 'its-last-name', slug: 'its-last-slug' })
    return found
  }
  await deleteSandbox({ ...deps, readSummary }, caller, { id })
  const last = (await eventsOf(id)).at(-1)
  assert.equal(last?.event_type, 'sandbox_deleted')
  assert.deepEqual([last.payload.name, last.payload.slug], ['its-last-name', 'its-last-slug'])
})

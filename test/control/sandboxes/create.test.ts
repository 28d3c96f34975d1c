import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { admitBatch, type AdmissionResult } from '../../../src/control/sandboxes/placement/admit-in-batch.ts'
import { createSandbox, type CreateSandboxCommand } from '../../../src/control/sandboxes/create-sandbox.ts'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import { getSandbox } from '../../../src/control/sandboxes/read-sandboxes.ts'
import { renameSandbox } from '../../../src/control/sandboxes/rename-sandbox.ts'
import { saveCredential } from '../../../src/control/orgs/registry-credentials.ts'
import { OrgQueueFull } from '../../../src/domain/requests/org-queue-full.ts'
import { moveSandbox } from '../../../src/control/sandboxes/transitions/transition.ts'
import { SYSTEM_ACTOR } from '../../../src/domain/orgs/caller.ts'
import type { Caller } from '../../../src/domain/orgs/caller.ts'
import type { Sandbox } from '../../../src/domain/sandboxes/sandbox.ts'
import { makeBatch } from '../../../src/lib/turns/batch.ts'
import type { Admission } from '../../../src/store/sandboxes/admissions.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addOrg } from '../../support/orgs.ts'
import { DEFAULT_SPEC_FOR_TESTS, PLAIN_SPEC } from '../../support/spec.ts'

let control: TestControl
let stranger: Caller
before(async () => {
  control = await makeTestControl()
  stranger = await addOrg(control.deps, 'stranger')
})
after(() => control.close())

const never = new AbortController().signal

function create(
  input: Partial<CreateSandboxCommand> = {},
  caller = control.caller,
  deps = control.deps,
): Promise<Sandbox> {
  return createSandbox(deps, caller, {
    spec: PLAIN_SPEC,
    name: null,
    slug: null,
    registry: { mode: 'auto' },
    start: false,
    waitMs: null,
    signal: never,
    ...input,
  })
}

async function countSandboxes(): Promise<number> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ readonly count: number }>({ text: 'SELECT count(*) AS count FROM sandboxes' }),
  )
  return rows[0]?.count ?? 0
}

function problem(code: string, field?: string) {
  return (error: unknown): boolean => {
    assert.ok(error instanceof Error && 'code' in error && 'details' in error, String(error))
    assert.equal(error.code, code)
    if (field === undefined) return true
    assert.ok(typeof error.details === 'object' && error.details !== null && 'field' in error.details)
    assert.equal(error.details.field, field)
    return true
  }
}

test('names are unique within an organization and slugs in all, and a refusal says whether the name or the slug is taken', async () => {
  const first = await create({ name: 'box', slug: 'the-box' })
  await assert.rejects(create({ name: 'box' }), problem('name_already_exists', 'name'))
  await assert.rejects(create({ name: 'box', slug: 'the-box' }), problem('name_already_exists', 'name'))
  await assert.rejects(create({ slug: 'the-box' }), problem('name_already_exists', 'slug'))
  await assert.rejects(create({ name: 'b2', slug: 'the-box' }, stranger), problem('name_already_exists', 'slug'))
  assert.equal((await create({ name: 'box' }, stranger)).name, 'box')
  await deleteSandbox(control.deps, control.caller, { id: first.id })
  assert.notEqual((await create({ name: 'box', slug: 'the-box' })).id, first.id)
})

test('without a name the slug becomes the name, and if another sandbox has that name, the refusal says that the name is taken', async () => {
  await create({ name: 'plain-words', slug: 'other-words' })
  await assert.rejects(create({ slug: 'plain-words' }), problem('name_already_exists', 'name'))
})

test('without a name the generated slug is the name, and a taken slug is generated again', async () => {
  let calls = 0
  const random = {
    // The first 100 calls give the same slug.
    bytes: (count: number): Buffer => (++calls <= 100 ? Buffer.alloc(count, 1) : control.deps.random.bytes(count)),
  }
  const deps = { ...control.deps, random }
  const input = { spec: PLAIN_SPEC, name: null, slug: null, registry: { mode: 'auto' } as const, start: false }
  const first = await createSandbox(deps, control.caller, { ...input, waitMs: null, signal: never })
  assert.equal(first.name, first.slug)
  calls = 90
  const second = await createSandbox(deps, control.caller, { ...input, waitMs: null, signal: never })
  assert.notEqual(second.slug, first.slug)
})

test('each create of a batch is answered by itself, and one of two with the same name succeeds', async () => {
  await create({ name: 'taken' })
  const names = ['taken', 'one', 'two', 'two', 'three', 'taken']
  const answers = await Promise.allSettled(names.map((name) => create({ name })))
  const made = answers.flatMap((answer, index) => (answer.status === 'fulfilled' ? [names[index]] : []))
  assert.deepEqual(made, ['one', 'two', 'three'])
  for (const answer of answers) if (answer.status === 'rejected') problem('name_already_exists', 'name')(answer.reason)
})

test('a suspended organization can create sandboxes, but not start them', async () => {
  const suspended = await addOrg(control.deps, 'suspended')
  await control.deps.db.asSystem((q) =>
    q.query({ text: 'UPDATE orgs SET suspended_at = now() WHERE id = $1', values: [suspended.org_id] }),
  )
  const count = await countSandboxes()
  await assert.rejects(create({ start: true }, suspended), problem('org_suspended'))
  assert.equal(await countSandboxes(), count)
  assert.equal((await create({}, suspended)).status, 'created')
})

test('if the quota check fails, only the creates that need it fail, and the others of the batch succeed', async () => {
  const caller = await addOrg(control.deps, 'crowded')
  await control.deps.db.asSystem((q) =>
    q.query({ text: 'UPDATE orgs SET suspended_at = now() WHERE id = $1', values: [caller.org_id] }),
  )
  const db = { ...control.deps.db, transaction: () => Promise.reject(new OrgQueueFull()) }
  const admit = makeBatch<Admission, AdmissionResult>({
    run: (wanted) => admitBatch({ ...control.deps, db }, wanted),
    groupOf: () => '',
    maxItems: 8,
    maxInFlight: 1,
  })
  const count = await countSandboxes()
  const wanted = [false, true, false].map((start) =>
    create({ start }, caller, { ...control.deps, admitInBatch: admit }),
  )
  const answers = await Promise.allSettled(wanted)
  assert.deepEqual(
    answers.map((answer) =>
      answer.status === 'fulfilled' ? answer.value.status : answer.reason instanceof OrgQueueFull,
    ),
    ['created', true, 'created'],
  )
  assert.equal(await countSandboxes(), count + 2)
})

test('a field that no worker can enforce is refused by name, and nothing is stored', async () => {
  const count = await countSandboxes()
  await assert.rejects(
    create({ spec: DEFAULT_SPEC_FOR_TESTS }),
    { code: 'unavailable' },
    'no worker has said anything yet',
  )
  await control.deps.db.asSystem((q) =>
    q.query({
      text: `INSERT INTO workers (id, name, credential_sha256, driver, created_at)
             VALUES ($1, 'w', decode(repeat('00', 32), 'hex'), '{"abilities": []}', $2)`,
      values: [control.deps.uuids.next(), control.deps.clock.now()],
    }),
  )
  await assert.rejects(create({ spec: DEFAULT_SPEC_FOR_TESTS }), problem('invalid_sandbox_config', 'network.enabled'))
  assert.equal(await countSandboxes(), count)
})

test('a registry password in a create body is stored sealed, and deleted once the first run runs', async () => {
  const password = 'hunter2-hunter2'
  const { id } = await create({ start: true, registry: { mode: 'inline', username: 'me', password } })
  const read = async (): Promise<{ readonly row: string; readonly sealed: Buffer | null; readonly run: string }> => {
    const { rows } = await control.deps.db.asSystem((q) =>
      q.query<{ row: string; sealed: Buffer | null; run: string }>({
        text: `SELECT s::text AS row, s.registry_sealed AS sealed, r.id AS run FROM sandboxes s
               JOIN runs r ON r.sandbox_id = s.id WHERE s.id = $1`,
        values: [id],
      }),
    )
    const [row] = rows
    assert.ok(row)
    return row
  }
  const before = await read()
  assert.ok(before.sealed !== null && !before.sealed.includes(password) && !before.row.includes(password))
  assert.match(before.row, /me/)
  await moveSandbox(control.deps, {
    sandbox_id: id,
    run_id: null,
    event: 'stop_requested',
    cause: { actor: SYSTEM_ACTOR, code: 'requested' },
  })
  assert.equal((await read()).sealed, null)
})

test('a credential named by a create must belong to the organization and to the image’s registry', async () => {
  const { deps } = control
  const secret = { host: 'registry.example', username: 'me', password: 'secret' }
  const { id: credential_id } = await saveCredential(deps, control.caller, secret)
  const registry = { mode: 'specific', credential_id } as const
  assert.equal((await create({ registry })).status, 'created')
  await assert.rejects(create({ registry }, stranger), problem('invalid_request', 'registry.credential_id'))
  const elsewhere = { ...PLAIN_SPEC, image: '127.0.0.1:5000/box' }
  await assert.rejects(create({ registry, spec: elsewhere }), problem('invalid_request', 'registry.credential_id'))
})

test('a rename changes the given fields, may be repeated, and is refused by field if a name or slug is taken', async () => {
  const { deps, caller } = control
  const { id } = await create({ name: 'before', slug: 'before-slug' })
  await create({ name: 'other', slug: 'other-slug' })
  await create({ name: 'x', slug: 'far-slug' }, stranger)
  const renamed = await renameSandbox(deps, caller, { id }, { name: 'after' })
  assert.deepEqual([renamed.name, renamed.slug], ['after', 'before-slug'])
  assert.equal((await renameSandbox(deps, caller, { id }, { name: 'after' })).name, 'after')
  await assert.rejects(renameSandbox(deps, caller, { id }, { name: 'other' }), problem('name_already_exists', 'name'))
  for (const slug of ['other-slug', 'far-slug'])
    await assert.rejects(renameSandbox(deps, caller, { id }, { slug }), problem('name_already_exists', 'slug'))
  await assert.rejects(getSandbox(deps, caller, { name: 'before' }), problem('sandbox_not_found'))
  assert.equal((await getSandbox(deps, caller, { name: 'after' })).id, id)
  await deleteSandbox(deps, caller, { id })
  await assert.rejects(renameSandbox(deps, caller, { id }, { name: 'z' }), problem('sandbox_not_found'))
})

test('a sandbox that is deleted twice at once is deleted once, and no route finds it', async () => {
  const { deps, caller } = control
  const { id, name } = await create({ start: true })
  await Promise.all([1, 2, 3].map(() => deleteSandbox(deps, caller, { id })))
  for (const ref of [{ id }, { name }])
    await assert.rejects(getSandbox(deps, caller, ref), problem('sandbox_not_found'))
  await assert.rejects(deleteSandbox(deps, caller, { id }), problem('sandbox_not_found'))
  const { rows } = await deps.db.asSystem((q) =>
    q.query({
      text: `SELECT 1 AS one FROM events WHERE sandbox_id = $1 AND event_type = 'sandbox_deleted'`,
      values: [id],
    }),
  )
  assert.equal(rows.length, 1)
})

test('an ended ephemeral sandbox can be deleted while it is still visible, and is then gone at once', async () => {
  const { deps, caller } = control
  const lifecycle = { ...PLAIN_SPEC.lifecycle, ephemeral: true }
  const { id } = await create({ start: true, spec: { ...PLAIN_SPEC, lifecycle } })
  const cause = { actor: SYSTEM_ACTOR, code: 'requested' } as const
  await moveSandbox(deps, { sandbox_id: id, run_id: null, event: 'stop_requested', cause })
  assert.equal((await getSandbox(deps, caller, { id })).status, 'stopped')
  await deleteSandbox(deps, caller, { id })
  await assert.rejects(getSandbox(deps, caller, { id }), problem('sandbox_not_found'))
})

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { createPreview } from '../../../src/control/previews/previews.ts'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { createSnapshot } from '../../../src/control/snapshots/create-snapshot.ts'
import { createVolume } from '../../../src/control/volumes/create-volume.ts'
import { registerWorker } from '../../../src/control/workers/worker-join.ts'
import { setQuota } from '../../../src/control/orgs/quotas.ts'
import type { SandboxId } from '../../../src/domain/ids.ts'
import type { Caller } from '../../../src/domain/orgs/caller.ts'
import { PREVIEWS_MAX, type PreviewAccess } from '../../../src/domain/previews/preview.ts'
import { SNAPSHOTS_MAX } from '../../../src/domain/snapshots/snapshot.ts'
import { VOLUMES_MAX } from '../../../src/domain/volumes/volume.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addOrg } from '../../support/orgs.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'

// What an organization may have a number of, created many times at once.

const AT_ONCE = 12
let control: TestControl
before(async () => {
  control = await makeTestControl()
})
after(() => control.close())

async function sql(text: string, values: readonly unknown[]): Promise<number> {
  return (await control.deps.db.asSystem((q) => q.query({ text, values }))).rowCount
}

async function idle(caller: Caller): Promise<SandboxId> {
  const how = { name: null, slug: null, registry: { mode: 'auto' }, start: false, waitMs: null, signal: null } as const
  return (await createSandbox(control.deps, caller, { ...how, spec: PLAIN_SPEC })).id
}

/** Creates many at once, and asserts how many succeed. All others must be refused by a quota. */
async function assertCreated(count: number, create: (n: number) => Promise<unknown>): Promise<void> {
  const results = await Promise.allSettled(Array.from({ length: AT_ONCE }, (_, n) => create(n)))
  const refusals = results.flatMap((one): readonly unknown[] => (one.status === 'rejected' ? [one.reason] : []))
  for (const refusal of refusals) assert.equal(Object(refusal).code, 'quota_exceeded', String(refusal))
  assert.equal(AT_ONCE - refusals.length, count)
}

test('volumes that are created at once are never more than the maximum', async () => {
  const caller = await addOrg(control.deps, 'volumes')
  await sql(
    `INSERT INTO volumes (id, org_id, kind, name, status, created_at, updated_at)
     SELECT gen_random_uuid(), $1, 'managed', 'v' || n, 'active', now(), now() FROM generate_series(1, $2::integer) n`,
    [caller.org_id, VOLUMES_MAX - 2],
  )
  await assertCreated(2, (n) =>
    createVolume(control.deps, caller, { name: `new-${String(n)}`, labels: {}, capacity_gib: null }),
  )
})

test('snapshots that are asked for at once are never more than the maximum, for which failed ones do not count', async () => {
  const caller = await addOrg(control.deps, 'snapshots')
  const sandbox_id = await placed(caller)
  await addSnapshots(caller, { sandbox_id, count: SNAPSHOTS_MAX - 2 })
  await addSnapshots(caller, { sandbox_id, count: 10, error: { code: 'no_disk', message: 'no disk' } })
  const how = { labels: {}, replaces: false, records_integrity: false }
  await assertCreated(2, (n) => createSnapshot(control.deps, caller, { ...how, sandbox_id, name: `new-${String(n)}` }))
})

async function placed(caller: Caller): Promise<SandboxId> {
  const worker = await registerWorker(control.deps, { name: 'w', credential: 'credential-of-w' })
  const id = await idle(caller)
  await sql('UPDATE sandboxes SET home_worker_id = $2 WHERE id = $1', [id, worker])
  return id
}

/** Adds queued snapshots, or failed ones. */
async function addSnapshots(
  { org_id }: Caller,
  {
    sandbox_id,
    count,
    error = null,
  }: { readonly sandbox_id: SandboxId; readonly count: number; error?: object | null },
): Promise<void> {
  await sql(
    `INSERT INTO snapshots (id, operation_id, org_id, name, status, error, completed_at, sandbox_id, sandbox_name, worker_id,
       image, labels, replaces, records_integrity, created_at, updated_at)
     SELECT gen_random_uuid(), gen_random_uuid(), $1, 's' || n, CASE WHEN $4::jsonb IS NULL THEN 'queued' ELSE 'failed' END, $4,
       CASE WHEN $4::jsonb IS NOT NULL THEN now() END, id, 's', home_worker_id, 'i', '{}', false, false, now(), now()
     FROM sandboxes, generate_series(1, $3::integer) n WHERE id = $2`,
    [org_id, sandbox_id, count, error === null ? null : JSON.stringify(error)],
  )
}

test('previews that are created at once exceed neither the limit of a plan nor the maximum of a sandbox', async () => {
  const caller = await addOrg(control.deps, 'previews')
  await setQuota(control.deps, caller, { limit: 'max_public_previews', value: 3 })
  const [one, other] = [await idle(caller), await idle(caller)]
  const open = (sandbox_id: SandboxId, access: PreviewAccess) =>
    createPreview(control.deps, caller, { sandbox_id, port: 8000, access, expires_at: null })
  await assertCreated(3, (n) => open(n % 2 === 0 ? one : other, 'public'))
  await sql(
    `INSERT INTO previews (id, org_id, sandbox_id, port, access, created_at)
     SELECT gen_random_uuid(), $1, $2, 80, 'public', now()
     FROM generate_series(1, $3::integer - (SELECT count(*)::integer FROM previews WHERE sandbox_id = $2))`,
    [caller.org_id, one, PREVIEWS_MAX - 2],
  )
  await assertCreated(2, () => open(one, 'link'))
})

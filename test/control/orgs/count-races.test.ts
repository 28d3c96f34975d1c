import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { createApiKey, listApiKeys, revokeApiKey } from '../../../src/control/orgs/api-keys.ts'
import { addMember } from '../../../src/control/orgs/members.ts'
import { saveCredential } from '../../../src/control/orgs/registry-credentials.ts'
import { addSshKey } from '../../../src/control/orgs/ssh-keys.ts'
import { createPreview } from '../../../src/control/previews/previews.ts'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { createSnapshot } from '../../../src/control/snapshots/create-snapshot.ts'
import { createVolume } from '../../../src/control/volumes/create-volume.ts'
import { registerWorker } from '../../../src/control/workers/worker-join.ts'
import { setQuota } from '../../../src/control/orgs/quotas.ts'
import type { SandboxId } from '../../../src/domain/ids.ts'
import type { Caller } from '../../../src/domain/orgs/caller.ts'
import { ORG_MAXIMA } from '../../../src/domain/org-maxima.ts'
import { PREVIEWS_MAX, type PreviewAccess } from '../../../src/domain/previews/preview.ts'
import { SNAPSHOTS_MAX } from '../../../src/domain/snapshots/snapshot.ts'
import { VOLUMES_MAX } from '../../../src/domain/volumes/volume.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addOrg } from '../../support/orgs.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'
import { makeSshKey } from '../../support/ssh-keys.ts'

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

/** Adds API keys, with the same times. */
async function addKeys(
  { org_id }: Caller,
  { count, ...times }: { readonly count: number; readonly expires_at?: Date; readonly revoked_at?: Date },
): Promise<void> {
  await sql(
    `INSERT INTO api_keys (id, org_id, name, scopes, secret_sha256, created_at, expires_at, revoked_at)
     SELECT id, $1, 'k', '{read}', sha256(id::text::bytea), now(), $3, $4
     FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, $2::integer)) k`,
    [org_id, count, times.expires_at ?? null, times.revoked_at ?? null],
  )
}

test('API keys that are created at once are never more than the maximum, for which revoked and expired ones do not count', async () => {
  const caller = await addOrg(control.deps, 'keys')
  const create = (n: number) =>
    createApiKey(control.deps, caller, { name: `new ${String(n)}`, scopes: ['read'], expires_at: null })
  const past = new Date(0)
  await addKeys(caller, { count: 10, revoked_at: past })
  await addKeys(caller, { count: 10, expires_at: past })
  await addKeys(caller, { count: ORG_MAXIMA.api_keys - 3 }) // the caller has one
  await assertCreated(2, create)
  const [newest] = (await listApiKeys(control.deps, caller, { cursor: null, limit: 1 })).items
  assert.ok(newest !== undefined)
  await revokeApiKey(control.deps, caller, newest.id)
  await assertCreated(1, create)
})

test('registry credentials that are saved at once are never more than the maximum, and one of a known host is still replaced', async () => {
  const caller = await addOrg(control.deps, 'credentials')
  const save = (host: string) => saveCredential(control.deps, caller, { host, username: 'u', password: 'p' })
  await sql(
    `INSERT INTO registry_credentials (id, org_id, host, username, password_sealed, created_at)
     SELECT gen_random_uuid(), $1, 'r' || n || '.example', 'u', '', now() FROM generate_series(1, $2::integer) n`,
    [caller.org_id, ORG_MAXIMA.registry_credentials - 2],
  )
  await assertCreated(2, (n) => save(`new-${String(n)}.example`))
  await assertCreated(AT_ONCE, () => save('r1.example'))
})

test('SSH keys that are added at once are never more than the maximum', async () => {
  const caller = await addOrg(control.deps, 'ssh-keys')
  await sql(
    `INSERT INTO ssh_keys (id, org_id, name, public_key, fingerprint, created_at)
     SELECT gen_random_uuid(), $1, 'k', 'k' || n, 'f' || n, now() FROM generate_series(1, $2::integer) n`,
    [caller.org_id, ORG_MAXIMA.ssh_keys - 2],
  )
  await assertCreated(2, () => addSshKey(control.deps, caller, { name: 'k', public_key: makeSshKey() }))
})

test('members that are added at once are never more than the maximum', async () => {
  const caller = await addOrg(control.deps, 'members')
  await sql(
    `WITH people AS (INSERT INTO users (id, email, created_at) SELECT gen_random_uuid(), 'm' || n || '@example.org', now()
       FROM generate_series(1, $2::integer - (SELECT count(*)::integer FROM members WHERE org_id = $1)) n RETURNING id)
     INSERT INTO members (id, org_id, user_id, role, is_operator, joined_at)
     SELECT gen_random_uuid(), $1, id, 'viewer', false, now() FROM people`,
    [caller.org_id, ORG_MAXIMA.members - 2],
  )
  const person = { display_name: null, role: 'viewer' } as const
  await assertCreated(2, (n) => addMember(control.deps, caller, { ...person, email: `new${String(n)}@example.org` }))
})

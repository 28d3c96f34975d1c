import { formatApiKey, hashSecret } from '../domain/api-key.ts'
import { asId, type ApiKeyId, type OrgId } from '../domain/ids.ts'
import type { TypedEvent } from '../domain/event-types.ts'
import type { Queryable } from '../store/database.ts'
import * as events from '../store/events.ts'
import * as orgs from '../store/orgs.ts'
import type { ControlDeps } from './deps.ts'
import { SYSTEM } from './transition.ts'

type BootstrapDeps = Pick<ControlDeps, 'db' | 'clock' | 'uuids' | 'random'>

/** What a first start made. */
export type FirstOrg = { readonly org_id: OrgId; readonly key: string }

/**
 * Makes the first organization with its owner, host volume and API key, in one transaction; null when there is one
 * already. `givenKey` is installed in place of a made one.
 */
export async function makeFirstOrg(deps: BootstrapDeps, givenKey: string | null): Promise<FirstOrg | null> {
  return deps.db.transaction('system', async (tx) => {
    await orgs.lockFirst(tx)
    if ((await orgs.first(tx)) !== null) return null
    const now = deps.clock.now()
    const org_id = asId<OrgId>(deps.uuids.next())
    const user_id = deps.uuids.next()
    const volume_id = deps.uuids.next()
    const member_id = deps.uuids.next()
    await orgs.insertOrg(tx, { id: org_id, name: 'default', slug: 'default', now })
    await orgs.insertMember(tx, {
      id: member_id,
      org_id,
      user_id,
      email: 'owner@localhost',
      role: 'owner',
      now,
    })
    await orgs.insertHostVolume(tx, { id: volume_id, org_id, now })
    await tell(deps, tx, org_id, { event_type: 'org_created', payload: { name: 'default', slug: 'default' } })
    await tell(deps, tx, org_id, { event_type: 'member_added', payload: { member_id, user_id, role: 'owner' } })
    await tell(deps, tx, org_id, { event_type: 'volume_created', payload: { volume_id, kind: 'host' } })
    const key = await insertKey(deps, tx, org_id, { name: 'first key', key: givenKey, expires_at: null })
    return { org_id, key }
  })
}

/** Makes an API key of the first organization; its text is answered once and stored nowhere. */
export async function makeApiKey(
  deps: BootstrapDeps,
  input: { readonly name: string; readonly expires_at: Date | null },
): Promise<string> {
  return deps.db.transaction('system', async (tx) => {
    const org = await orgs.first(tx)
    if (org === null) throw new Error('there is no organization yet: start the server once')
    return insertKey(deps, tx, org.id, { ...input, key: null })
  })
}

async function insertKey(
  deps: BootstrapDeps,
  tx: Queryable,
  org_id: OrgId,
  input: { readonly name: string; readonly key: string | null; readonly expires_at: Date | null },
): Promise<string> {
  const key = input.key ?? formatApiKey(deps.random.bytes(32))
  const id = asId<ApiKeyId>(deps.uuids.next())
  const { name, expires_at } = input
  await orgs.insertApiKey(tx, {
    id,
    org_id,
    name,
    scopes: ['read', 'write', 'admin'],
    secretSha256: hashSecret(key),
    now: deps.clock.now(),
    expires_at,
  })
  await tell(deps, tx, org_id, {
    event_type: 'api_key_created',
    payload: { api_key_id: id, name, scopes: ['read', 'write', 'admin'] },
  })
  return key
}

async function tell(deps: BootstrapDeps, tx: Queryable, org_id: OrgId, told: TypedEvent): Promise<void> {
  const event = {
    id: deps.uuids.next(),
    org_id,
    timestamp: deps.clock.now(),
    sandbox_id: null,
    actor: SYSTEM,
    ...told,
  }
  await events.insertMany(tx, [event])
}

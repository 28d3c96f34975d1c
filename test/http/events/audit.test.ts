import assert from 'node:assert/strict'
import { once } from 'node:events'
import { after, before, test } from 'node:test'
import { WebSocket } from 'ws'
import { OPERATIONS } from '../../../src/contract/operations.ts'
import { addMember, changeMemberRole, removeMember, setOperator } from '../../../src/control/orgs/members.ts'
import { replaceAuthority } from '../../../src/control/orgs/intercept-authorities.ts'
import { allowNetworkRange, disallowNetworkRange } from '../../../src/control/orgs/network-ranges.ts'
import { changeOrgPlan, createOrg, resumeOrg, suspendOrg } from '../../../src/control/orgs/orgs.ts'
import { setPlan } from '../../../src/control/orgs/plans.ts'
import { setQuota } from '../../../src/control/orgs/quotas.ts'
import { recordDiskPressure } from '../../../src/control/workers/record-disk-pressure.ts'
import { createWebhook, updateWebhook } from '../../../src/control/webhooks/webhooks.ts'
import { OPERATOR_ACTOR, type OrgActor } from '../../../src/domain/orgs/caller.ts'
import { EVENT_TYPES, type EventType } from '../../../src/domain/events/event-types.ts'
import { asId, type OrgId } from '../../../src/domain/ids.ts'
import { makeEnforceHardLimitsLoop } from '../../../src/loops/enforce-hard-limits.ts'
import { createSnapshot } from '../../../src/control/snapshots/create-snapshot.ts'
import { makePruneWebhookDeliveriesLoop } from '../../../src/loops/prune-webhook-deliveries.ts'
import { makeReapVolumesLoop } from '../../../src/loops/reap-volumes.ts'
import { assertReplyMatchesContract, operationIds } from '../../support/contract.ts'
import {
  EXAMPLE_REQUESTS,
  filePath,
  makeBusyWorld,
  createExampleObjects,
  type KeyedOperation,
  type ExampleObjects,
} from '../../support/every-operation.ts'
import { addKey } from '../../support/orgs.ts'
import { send } from '../../support/send.ts'
import { signIn } from '../../support/sign-in.ts'
import { waitUntil } from '../../support/wait.ts'
import type { WorkerWorld } from '../../support/worker-world.ts'

// The guarantees of the audit: every change records an event with its actor, and reads record none.

/** Event types that no operation, loop or worker in these tests records. The list must stay empty. */
const NEVER_SEEN: readonly EventType[] = []

type Seen = {
  readonly id: string
  readonly event_type: EventType
  readonly category: string
  readonly payload: Record<string, unknown>
  readonly actor: { readonly kind: string; readonly api_key_id?: string }
}

let world: WorkerWorld
before(async () => {
  world = await makeBusyWorld()
})
after(() => world.close())

const keyed = operationIds.filter((id): id is KeyedOperation => OPERATIONS[id].access !== 'none')

for (const id of keyed) {
  const { leaves, ask } = EXAMPLE_REQUESTS[id]
  test(`${id} leaves ${leaves.length === 0 ? 'no event' : leaves.join(', ')}`, async () => {
    const { caller, deps } = world.control
    const things = await createExampleObjects(world, caller)
    const setup = await addKey(deps, caller.org_id)
    const kept = { params: { id: things.volume.id }, headers: filePath('kept.txt'), body: Buffer.from('kept') }
    const { status: isKept } = await send(world.url, { id: 'write_volume_file', key: setup, asking: kept })
    assert.equal(isKept, 200)
    const key = await addKey(deps, caller.org_id, { isOperator: OPERATIONS[id].access === 'operator' })
    const before = (await allEvents()).length
    if (id === 'open_agent') await openChannel(things, key)
    else {
      const reply = await send(world.url, { id, key, asking: ask(things) })
      assert.ok(reply.status === 200, `${id}: ${reply.text}`)
      if (OPERATIONS[id].reply.kind === 'json') assertReplyMatchesContract(id, reply.status, JSON.parse(reply.text))
    }
    const { rows } = await deps.db.asSystem((q) =>
      q.query<{ id: string }>({ text: `SELECT id FROM api_keys WHERE name = 'k' ORDER BY id DESC LIMIT 1` }),
    )
    const mine = (await allEvents()).slice(before).filter(({ actor }) => actor.api_key_id === rows[0]?.id)
    assert.deepEqual(
      mine.map(({ event_type }) => event_type),
      leaves,
    )
  })
}

test('together, operations, operators, loops and workers record every event type of the catalogue', async () => {
  const { deps } = world.control
  const signal = new AbortController().signal
  const { id } = await createOrg(deps, { name: 'audited', slug: 'audited', owner: 'o@example.org', plan: 'unlimited' })
  const acting = { org_id: asId<OrgId>(id), actor: OPERATOR_ACTOR }
  await addMember(deps, acting, { email: 'm@example.org', display_name: null, role: 'member' })
  await changeMemberRole(deps, acting, { email: 'm@example.org', role: 'admin' })
  await removeMember(deps, acting, { email: 'm@example.org' })
  const first = { org_id: world.control.caller.org_id, actor: OPERATOR_ACTOR }
  await setOperator(deps, first, { email: 'owner@localhost', isOperator: false })
  await signIn(deps, world.url, first.org_id, 'owner@localhost')
  await setPlan(deps, 'walled', { limits: { included_vcpu_hours: 1 }, prices: null })
  await changeOrgPlan(deps, acting, 'walled')
  await setPlan(deps, 'walled', { limits: { included_vcpu_hours: 0 }, prices: null })
  await setQuota(deps, acting, { limit: 'max_sandboxes', value: 10 })
  await allowNetworkRange(deps, acting, 'metadata')
  await disallowNetworkRange(deps, acting, 'metadata')
  await replaceAuthority(deps, acting)
  await leaveWebhookOf(acting)
  await suspendOrg(deps, acting, 'unpaid')
  await resumeOrg(deps, acting)
  await leaveRunsOf(acting.org_id)
  await makeEnforceHardLimitsLoop(deps).run(signal)
  const ended = await world.create({ image: 'registry.example/fails:1' })
  await waitUntil(async () => (await world.statusOf(ended.id)).status === 'failed')
  const taken = { name: 'of-failed', labels: {}, replaces: false, records_integrity: false }
  await createSnapshot(deps, world.control.caller, { ...taken, sandbox_id: ended.id })
  const hungry = await world.create({ image: 'registry.example/hungry:1' })
  await waitUntil(async () => (await typesOf(hungry.id)).has('sandbox_out_of_memory'))
  const waiting = await world.create({ resources: { vcpus: 4_000, memory_mib: 64, disk_size_mib: null } })
  await waitUntil(async () => (await typesOf(waiting.id)).has('sandbox_waiting'))
  const disk = { total_mib: 1_000, free_mib: 40, reserve_mib: 50, pressure: 'short' } as const
  await recordDiskPressure(deps, world.worker_id, { disk, wasShort: false })
  await recordDiskPressure(deps, world.worker_id, { disk: { ...disk, pressure: 'none' }, wasShort: true })
  await waitUntil(async () => {
    await makeReapVolumesLoop(deps).run(signal)
    const types = new Set((await allEvents()).map(({ event_type }) => event_type))
    return types.has('volume_deleted') && types.has('snapshot_failed')
  })
  const left = new Set((await allEvents()).map(({ event_type }) => event_type))
  const missing = Object.keys(EVENT_TYPES).filter((type) => ![...left].some((one) => one === type))
  assert.deepEqual(missing, NEVER_SEEN)
})

test('a filter of the list that can match nothing is refused by its field', async () => {
  const key = await addKey(world.control.deps, world.control.caller.org_id)
  for (const [field, value] of [
    ['category', 'sandboxes'],
    ['sandbox_id', 'box'],
    ['actor', 'somebody'],
  ] as const) // prettier-ignore
  {
    const reply = await send(world.url, { id: 'list_events', key, asking: { query: { [field]: value } } })
    assert.equal(reply.status, 400)
    assert.ok(reply.text.includes(`query.${field}`), reply.text)
  }
  const query = { category: 'sandbox', actor: 'operator', sandbox_id: world.control.caller.org_id }
  const reply = await send(world.url, { id: 'list_events', key, asking: { query } })
  assert.equal(reply.status, 200)
  assertReplyMatchesContract('list_events', reply.status, JSON.parse(reply.text))
})

test('every recorded event has its category, its actor, and exactly the facts that the catalogue lists for its type', async () => {
  for (const { event_type, category, payload, actor } of await allEvents()) {
    const { category: expected, facts } = EVENT_TYPES[event_type]
    const kinds = new Map<string, string>(Object.entries(facts))
    assert.equal(category, expected)
    assert.ok(['api_key', 'system', 'user'].includes(actor.kind), JSON.stringify(actor))
    for (const [name, value] of Object.entries(payload))
      assert.ok(isOf(kinds.get(name), value), `${event_type}.${name}: ${JSON.stringify(value)}`)
    for (const [name, kind] of kinds) assert.ok(name in payload || kind.endsWith('?'), `${event_type} lacks ${name}`)
  }
})

test('no event holds a secret, an e-mail address or the content of a file', async () => {
  const text = JSON.stringify(await allEvents())
  for (const secret of ['hidden-password', 'hidden-content', 'hidden-path', 'msb_live_', 'whsec_', '@example.org'])
    assert.ok(!text.includes(secret), secret)
})

function isOf(kind: string | undefined, value: unknown): boolean {
  switch (kind?.replace('?', '')) {
    case 'uuid':
      return typeof value === 'string' && /^[0-9a-f-]{36}$/.test(value)
    case 'instant':
      return typeof value === 'string' && !Number.isNaN(Date.parse(value))
    case 'text':
      return typeof value === 'string'
    case 'texts':
      return Array.isArray(value) && value.every((one) => typeof one === 'string')
    case 'object':
      return typeof value === 'object' && value !== null && !Array.isArray(value)
    default:
      return typeof value === kind?.replace('?', '')
  }
}

/** Every event of every organization, the oldest first. */
async function allEvents(): Promise<readonly Seen[]> {
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<Seen>({ text: 'SELECT id, event_type, category, payload, actor FROM events ORDER BY id' }),
  )
  return rows
}

async function typesOf(sandbox: string): Promise<ReadonlySet<EventType>> {
  return new Set(
    (await allEvents()).filter(({ payload }) => payload['sandbox_id'] === sandbox).map(({ event_type }) => event_type),
  )
}

/** Resumes a paused webhook, and drops what waited for it. */
async function leaveWebhookOf(acting: OrgActor): Promise<void> {
  const { deps } = world.control
  const none = { event_types: null, category: null, sandbox_id: null, actor: null, description: '' }
  const { webhook } = await createWebhook(deps, acting, { ...none, url: 'https://hooks.example.com/hidden-path' })
  await updateWebhook(deps, acting, { id: webhook.id, changes: { paused: true } })
  await updateWebhook(deps, acting, { id: webhook.id, changes: { paused: false } })
  await deps.db.asSystem((q) =>
    q.query({
      text: `INSERT INTO webhook_deliveries (webhook_id, id, org_id, lane, place, created_at) VALUES ($1, $1, $2, $2, 1, now())`,
      values: [webhook.id, acting.org_id],
    }),
  )
  const fence = (): Promise<void> => Promise.resolve()
  const loop = makePruneWebhookDeliveriesLoop({ ...deps, fence, kept: { ended: 0, waiting: 0 } })
  while ((await loop.run(new AbortController().signal)) !== null);
}

/** Inserts a run that started a second ago, which exceeds a plan without included hours. */
async function leaveRunsOf(org: OrgId): Promise<void> {
  await world.control.deps.db.asSystem((q) =>
    q.query({
      text: `WITH s AS (INSERT INTO sandboxes (id, org_id, name, slug, status, ephemeral, created_at, vcpus, memory_mib, abilities, spec, spec_projection, registry)
               SELECT $1::uuid, $2::uuid, 'ran', 'ran', 'running', false, now(), 1, 64, '{}', '{"lifecycle":{}}', '{}', '{"mode":"auto"}')
             INSERT INTO runs (id, org_id, sandbox_id, vcpus, memory_mib, opened_at, started_at) SELECT $3::uuid, $2::uuid, $1::uuid, 1, 64, now(), now() - interval '1 second'`,
      values: [world.control.deps.uuids.next(), org, world.control.deps.uuids.next()],
    }),
  )
}

async function openChannel({ running }: ExampleObjects, key: string): Promise<void> {
  const url = `${world.url.replace('http', 'ws')}/v1/sandboxes/${running.id}/agent`
  const socket = new WebSocket(url, { headers: { authorization: `Bearer ${key}` } })
  await once(socket, 'open')
  socket.terminate()
}

import { after } from 'node:test'
import { createPreview } from '../../src/control/previews/previews.ts'
import { createSnapshot } from '../../src/control/snapshots/create-snapshot.ts'
import { getSnapshotOperation } from '../../src/control/snapshots/read-snapshots.ts'
import { createSandbox } from '../../src/control/sandboxes/create-sandbox.ts'
import { addMember } from '../../src/control/orgs/members.ts'
import { createApiKey } from '../../src/control/orgs/api-keys.ts'
import { createWebhook } from '../../src/control/webhooks/webhooks.ts'
import { registerWorker } from '../../src/control/workers/worker-join.ts'
import { createVolume } from '../../src/control/volumes/create-volume.ts'
import { saveCredential } from '../../src/control/orgs/registry-credentials.ts'
import { addSshKey } from '../../src/control/orgs/ssh-keys.ts'
import type { OperationId } from '../../src/contract/operations.ts'
import type { SERVICE_OPERATIONS } from '../../src/contract/service/operations.ts'
import { hashSecret } from '../../src/domain/orgs/api-key.ts'
import type { Caller } from '../../src/domain/orgs/caller.ts'
import type { EventType } from '../../src/domain/events/event-types.ts'
import type { OrgId, SandboxId } from '../../src/domain/ids.ts'
import { behaviourByImage } from '../../src/worker/drivers/simulated-behaviour.ts'
import { makeSimulatedDriver } from '../../src/worker/drivers/simulated.ts'
import { systemClock } from '../../src/lib/clock.ts'
import type { RequestParts } from './send.ts'
import { addKey } from './orgs.ts'
import { makeSshKey } from './ssh-keys.ts'
import { PLAIN_SPEC } from './spec.ts'
import { waitUntil } from './wait.ts'
import { makeWorkerWorld, type WorkerWorld } from './worker-world.ts'

/** The operations that need a key. */
export type KeyedOperation = Exclude<OperationId, keyof typeof SERVICE_OPERATIONS>

/** Objects of an organization that the example requests use. */
export type ExampleObjects = {
  /** A text that is part of the names of all these objects, and of no other object's name. */
  readonly mark: string
  /** A sandbox that was never started. */
  readonly idle: { readonly id: string; readonly name: string }
  readonly running: { readonly id: string; readonly name: string }
  readonly volume: { readonly id: string; readonly name: string }
  readonly event_id: string
  readonly api_key_id: string
  readonly credential_id: string
  readonly ssh_key_id: string
  readonly member_id: string
  readonly worker: string
  readonly preview: { readonly id: string }
  readonly webhook: { readonly id: string; readonly delivery_id: string }
  readonly snapshot: { readonly id: string; readonly operation_id: string; readonly name: string }
}

type Example = {
  /** A request that succeeds for the organization that owns the objects. */
  readonly ask: (things: ExampleObjects) => RequestParts
  /** The types of audit events that the request records, in order. None for a read. */
  readonly leaves: readonly EventType[]
}

const reads = (ask: Example['ask'] = () => ({})): Example => ({ ask, leaves: [] })
const changes = (leaves: readonly EventType[], ask: Example['ask']): Example => ({ ask, leaves })

const onIdle: Example['ask'] = ({ idle }) => ({ params: { sandbox_id: idle.id } })
const onIdleName: Example['ask'] = ({ idle }) => ({ params: { name: idle.name } })
const onRunning: Example['ask'] = ({ running }) => ({ params: { sandbox_id: running.id } })
const onRunningName: Example['ask'] = ({ running }) => ({ params: { name: running.name } })
const onVolume: Example['ask'] = ({ volume }) => ({ params: { id: volume.id } })
const onSnapshot: Example['ask'] = ({ snapshot }) => ({ params: { snapshot_id: snapshot.id } })
const onSnapshotName: Example['ask'] = ({ snapshot }) => ({ params: { name: snapshot.name } })
const onWebhook: Example['ask'] = ({ webhook }) => ({ params: { webhook_id: webhook.id } })
const onDelivery: Example['ask'] = ({ webhook }) => ({
  params: { webhook_id: webhook.id, delivery_id: webhook.delivery_id },
})
const onFile: Example['ask'] = ({ volume }) => ({ params: { id: volume.id }, headers: filePath('kept.txt') })

/** The header for a path in a volume, encoded as the public client does: base64url without padding. */
export function filePath(path: string): Readonly<Record<string, string>> {
  return { 'x-msb-file-path': Buffer.from(path).toString('base64url') }
}

/** One request for each operation. A new operation without a request here is a type error. */
export const EXAMPLE_REQUESTS: Readonly<Record<KeyedOperation, Example>> = {
  create_sandbox: changes(['sandbox_created', 'sandbox_starting'], ({ mark }) => ({
    query: { start: 'true' },
    body: { name: `made-${mark}`, image: 'registry.example/box:1' },
  })),
  list_sandboxes: reads(),
  get_sandbox: reads(onIdle),
  get_sandbox_by_name: reads(onIdleName),
  wait_for_sandbox: reads((things) => ({ ...onRunning(things), query: { for: 'running' } })),
  wait_for_sandbox_by_name: reads((things) => ({ ...onRunningName(things), query: { for: 'running' } })),
  update_sandbox: changes(['sandbox_renamed'], (things) => ({
    ...onIdle(things),
    body: { name: `renamed-${things.mark}` },
  })),
  update_sandbox_by_name: changes(['sandbox_renamed'], (things) => ({
    ...onIdleName(things),
    body: { name: `renamed-${things.mark}` },
  })),
  plan_modification: reads((things) => ({ ...onIdle(things), body: { secrets_remove: ['KEY'] } })),
  modify_sandbox: changes(['sandbox_secrets_changed'], (things) => ({
    ...onIdle(things),
    body: { secrets: [{ name: 'KEY', value: 'hidden-value', allowed_hosts: [{ type: 'any' }] }] },
  })),
  delete_sandbox: changes(['sandbox_deleted'], onIdle),
  delete_sandbox_by_name: changes(['sandbox_deleted'], onIdleName),
  start_sandbox: changes(['sandbox_starting'], onIdle),
  start_sandbox_by_name: changes(['sandbox_starting'], onIdleName),
  stop_sandbox: changes(['sandbox_stopping'], onRunning),
  stop_sandbox_by_name: changes(['sandbox_stopping'], onRunningName),
  read_sandbox_logs: reads((things) => ({ ...onRunning(things), query: { follow: 'false' } })),
  read_sandbox_metrics: reads(onRunning),
  follow_sandbox_metrics: reads(onIdle),
  stream_events: reads(() => ({ query: { until: '2026-01-01T00:00:00Z' } })),
  read_org_metrics: reads(),
  read_installation_metrics: reads(),
  open_agent: changes(['sandbox_channel_opened'], onRunning),
  list_servers: reads(),
  list_workers: reads(),
  drain_worker: reads(({ worker }) => ({ params: { worker_name: worker }, body: { deadline_secs: 600 } })),
  resume_worker: reads(({ worker }) => ({ params: { worker_name: worker } })),
  list_waiting_sandboxes: reads(),
  list_orgs: reads(),
  list_plans: reads(),
  get_org: reads(),
  list_members: reads(),
  invite_member: changes(['member_added', 'sign_in_link_created'], ({ mark }) => ({
    body: { email: `invited-${mark}@example.org`, role: 'viewer' },
  })),
  change_member: changes(['member_role_changed'], ({ member_id }) => ({
    params: { member_id },
    body: { role: 'admin' },
  })),
  remove_member: changes(['member_removed'], ({ member_id }) => ({ params: { member_id } })),
  get_quotas: reads(),
  get_usage: reads(),
  get_sandbox_breakdown: reads(),
  get_storage_breakdown: reads(),
  list_events: reads(),
  get_event: reads(({ event_id }) => ({ params: { event_id } })),
  list_api_keys: reads(),
  create_api_key: changes(['api_key_created'], () => ({ body: { name: 'made', scopes: ['read'] } })),
  get_api_key: reads(({ api_key_id }) => ({ params: { api_key_id } })),
  revoke_api_key: changes(['api_key_revoked'], ({ api_key_id }) => ({ params: { api_key_id } })),
  list_ssh_keys: reads(),
  add_ssh_key: changes(['ssh_key_added'], () => ({ body: { name: 'laptop', public_key: makeSshKey() } })),
  get_ssh_key: reads(({ ssh_key_id }) => ({ params: { ssh_key_id } })),
  remove_ssh_key: changes(['ssh_key_removed'], ({ ssh_key_id }) => ({ params: { ssh_key_id } })),
  list_registry_credentials: reads(),
  save_registry_credential: changes(['registry_credential_saved'], () => ({
    body: { host: 'other.example', username: 'me', password: 'hidden-password' },
  })),
  delete_registry_credential: changes(['registry_credential_deleted'], ({ credential_id }) => ({
    params: { credential_id },
  })),
  create_snapshot: changes(['snapshot_requested'], ({ running, mark }) => ({
    body: { kind: 'disk', sandbox_id: running.id, name: `taken-${mark}` },
  })),
  get_snapshot_operation: reads(({ snapshot }) => ({ params: { operation_id: snapshot.operation_id } })),
  list_snapshots: reads(),
  get_snapshot: reads(onSnapshot),
  get_snapshot_by_name: reads(onSnapshotName),
  delete_snapshot: changes(['snapshot_deleted'], onSnapshot),
  delete_snapshot_by_name: changes(['snapshot_deleted'], onSnapshotName),
  fork_sandbox: changes(['sandbox_created', 'sandbox_starting'], (things) => ({
    ...onRunning(things),
    body: { count: 1 },
  })),
  create_preview: changes(['preview_created'], (things) => ({ ...onIdle(things), body: { port: 3000 } })),
  list_previews: reads(onIdle),
  revoke_preview: changes(['preview_revoked'], ({ idle, preview }) => ({
    params: { sandbox_id: idle.id, preview_id: preview.id },
  })),
  create_webhook: changes(['webhook_created'], () => ({ body: { url: 'https://hooks.example.com/hidden-path' } })),
  list_webhooks: reads(),
  get_webhook: reads(onWebhook),
  update_webhook: changes(['webhook_updated', 'webhook_paused'], (things) => ({
    ...onWebhook(things),
    body: { event_types: ['sandbox_failed'], paused: true },
  })),
  test_webhook: reads(onWebhook),
  rotate_webhook_secret: changes(['webhook_secret_rotated'], onWebhook),
  list_webhook_deliveries: reads(onWebhook),
  get_webhook_delivery: reads(onDelivery),
  resend_webhook_delivery: changes(['webhook_delivery_resent'], onDelivery),
  delete_webhook: changes(['webhook_deleted'], onWebhook),
  list_volumes: reads(),
  create_volume: changes(['volume_created'], ({ mark }) => ({ body: { name: `made-${mark}` } })),
  get_default_volume: reads(),
  get_volume: reads(onVolume),
  update_volume: changes(['volume_updated'], (things) => ({ ...onVolume(things), body: { labels: { team: 'ml' } } })),
  delete_volume: changes(['volume_deletion_scheduled'], onVolume),
  list_volume_files: reads((things) => ({ ...onVolume(things), headers: filePath('') })),
  stat_volume_file: reads(onFile),
  volume_file_exists: reads(onFile),
  read_volume_file: reads(onFile),
  write_volume_file: changes(['volume_file_written'], (things) => ({
    ...onVolume(things),
    headers: filePath('new.txt'),
    body: Buffer.from('hidden-content'),
  })),
  make_volume_folder: changes(['volume_folder_made'], (things) => ({ ...onVolume(things), body: { path: 'folder' } })),
  copy_volume_file: changes(['volume_file_copied'], (things) => ({
    ...onVolume(things),
    body: { from: 'kept.txt', to: 'copy.txt' },
  })),
  rename_volume_file: changes(['volume_file_renamed'], (things) => ({
    ...onVolume(things),
    body: { from: 'kept.txt', to: 'other.txt' },
  })),
  remove_volume_file: changes(['volume_file_removed'], (things) => ({
    ...onFile(things),
    headers: { ...filePath('kept.txt'), 'x-msb-file-recursive': 'false' },
  })),
}

/**
 * Creates a world whose worker runs simulated sandboxes on real volumes. A start fails if its image is named `fails`. The
 * kernel kills processes of a sandbox if its image is named `hungry`.
 */
export async function makeBusyWorld(): Promise<WorkerWorld> {
  const world = await makeWorkerWorld()
  const failing = {
    image: /\/fails:/,
    behaviour: { startFailure: { reason: 'image', message: 'no such image' } },
  } as const
  const hungry = { image: /\/hungry:/, behaviour: { memoryKills: 2 } }
  world.runWorker(makeSimulatedDriver({ clock: systemClock, behaviourOf: behaviourByImage([failing, hungry]) }))
  return world
}

/**
 * Creates a busy world for the tests of one file, with a caller and a key of its first organization. Closes it after
 * them.
 */
export async function openBusyWorld(): Promise<{
  readonly world: WorkerWorld
  readonly caller: Caller
  readonly key: string
}> {
  const world = await makeBusyWorld()
  after(() => world.close())
  const { caller, deps } = world.control
  return { world, caller, key: await addKey(deps, caller.org_id) }
}

let made = 0

/** Adds a complete snapshot of a running sandbox. */
async function addSnapshot(
  { control: { deps } }: WorkerWorld,
  caller: Caller,
  { id: sandbox_id, name }: { readonly id: SandboxId; readonly name: string },
): Promise<ExampleObjects['snapshot']> {
  const wanted = { sandbox_id, name, labels: {}, replaces: false, records_integrity: false }
  const { id, operation_id } = await createSnapshot(deps, caller, wanted)
  await waitUntil(async () => (await getSnapshotOperation(deps, caller, operation_id)).status === 'succeeded')
  return { id, operation_id, name }
}

/** Creates one set of example objects in an organization, under new names. */
export async function createExampleObjects(world: WorkerWorld, caller: Caller): Promise<ExampleObjects> {
  const { deps } = world.control
  const mark = String(++made)
  const create = (kind: string) =>
    createSandbox(deps, caller, {
      spec: PLAIN_SPEC,
      name: `${kind}-${mark}`,
      slug: null,
      registry: { mode: 'auto' },
      start: kind === 'running',
      waitMs: null,
      signal: new AbortController().signal,
    })
  const [idle, running] = [await create('idle'), await create('running')]
  await waitUntil(async () => (await world.statusOf(running.id)).status === 'running')
  const volume = await createVolume(deps, caller, { name: `volume-${mark}`, labels: {}, capacity_gib: null })
  const key = await createApiKey(deps, caller, { name: `key-${mark}`, scopes: ['read'], expires_at: null })
  const sshKey = await addSshKey(deps, caller, { name: `ssh-key-${mark}`, public_key: makeSshKey() })
  const credential = await saveCredential(deps, caller, {
    host: `registry-${mark}.example`,
    username: 'me',
    password: 'hidden-password',
  })
  const member = { email: `member-${mark}@example.org`, display_name: null, role: 'member' } as const
  const worker = `spare-${mark}`
  await registerWorker(deps, { name: worker, credential: worker })
  return {
    mark,
    worker,
    member_id: await addMember(deps, caller, member),
    idle,
    running,
    volume: { id: volume.id, name: `volume-${mark}` },
    snapshot: await addSnapshot(world, caller, { id: running.id, name: `snapshot-${mark}` }),
    preview: await createPreview(deps, caller, { sandbox_id: idle.id, port: 8000, access: 'public', expires_at: null }),
    event_id: await latestEvent(world, caller.org_id),
    webhook: await addWebhook(world, caller),
    api_key_id: key.id,
    credential_id: credential.id,
    ssh_key_id: sshKey.id,
  }
}

/** Adds a webhook with a delivery of the latest event. Nothing listens at its URL. */
async function addWebhook(world: WorkerWorld, caller: Caller): Promise<ExampleObjects['webhook']> {
  const { deps } = world.control
  const none = { event_types: null, category: null, sandbox_id: null, actor: null }
  const url = `http://127.0.0.1:9/hidden-path-${String(made)}`
  const { webhook } = await createWebhook(deps, caller, { ...none, url, description: '' })
  const delivery_id = await latestEvent(world, caller.org_id)
  await deps.db.asSystem((q) =>
    q.query({
      text: `INSERT INTO webhook_deliveries (webhook_id, id, org_id, lane, place, created_at) VALUES ($1, $2, $3, $3, 1, now())`,
      values: [webhook.id, delivery_id, caller.org_id],
    }),
  )
  return { id: webhook.id, delivery_id }
}

async function latestEvent(world: WorkerWorld, org: OrgId): Promise<string> {
  const { rows } = await world.control.deps.db.asOrg(org, (q) =>
    q.query<{ readonly id: string }>({
      text: 'SELECT id FROM events WHERE org_id = $1 ORDER BY id DESC LIMIT 1',
      values: [org],
    }),
  )
  return rows[0]?.id ?? ''
}

/** Creates a key that was revoked or has expired. */
export async function createUnusableKey(world: WorkerWorld, org: OrgId, why: 'expired' | 'revoked'): Promise<string> {
  const { deps } = world.control
  const past = new Date(deps.clock.now().getTime() - 60_000)
  const key = await addKey(deps, org, { expires_at: why === 'expired' ? past : null })
  if (why === 'revoked') {
    await deps.db.asSystem((q) =>
      q.query({ text: `UPDATE api_keys SET revoked_at = now() WHERE secret_sha256 = $1`, values: [hashSecret(key)] }),
    )
  }
  return key
}

/**
 * The catalogue of audit events: each event type with its category, its description and the fields of its payload. The
 * TypeScript types of payloads are derived from the catalogue, and the table in docs/events.md is generated from it.
 */

/** The kind of a payload field. A trailing `?` means that it may be absent. */
type Kind = 'uuid' | 'text' | 'number' | 'boolean' | 'instant' | 'texts' | 'object'
type FactKind = Kind | `${Kind}?`

type Value = {
  readonly uuid: string
  readonly text: string
  readonly number: number
  readonly boolean: boolean
  readonly instant: string
  readonly texts: readonly string[]
  readonly object: Readonly<Record<string, unknown>>
}

type Facts = Readonly<Record<string, FactKind>>

function event<const Category extends string, const Given extends Facts>(
  category: Category,
  what: string,
  facts: Given,
) {
  return { category, what, facts }
}

const sandbox = { sandbox_id: 'uuid', name: 'text' } as const
/**
 * `cause` is a cause code such as `requested`; `message` is a sentence about what failed. `start_ms` has the duration of
 * each phase of a start, and `failed_phase` the one that failed.
 */
const transition = {
  ...sandbox,
  run_id: 'uuid?',
  cause: 'text',
  message: 'text?',
  worker: 'text?',
  facts: 'object?',
  start_ms: 'object?',
  failed_phase: 'text?',
} as const
const member = { member_id: 'uuid', user_id: 'uuid', role: 'text' } as const
const key = { api_key_id: 'uuid', name: 'text' } as const
const sshKey = { ssh_key_id: 'uuid', name: 'text', fingerprint: 'text' } as const
const credential = { credential_id: 'uuid', host: 'text', username: 'text' } as const
const workerDisk = { worker: 'text', free_mib: 'number', reserve_mib: 'number' } as const
const snapshot = { snapshot_id: 'uuid', name: 'text' } as const
const preview = { ...sandbox, preview_id: 'uuid', port: 'number', access: 'text' } as const
/** `host` is that of the URL, which may have a secret elsewhere. */
const webhook = { webhook_id: 'uuid', host: 'text' } as const
const file = { volume_id: 'uuid', path: 'text' } as const

export const EVENT_TYPES = {
  org_created: event('org', 'The organization was created.', { name: 'text', slug: 'text' }),
  org_suspended: event('org', 'The organization was suspended: its sandboxes are stopped and starts are refused.', {
    reason: 'text?',
  }),
  org_resumed: event('org', 'The suspension ended: sandboxes may start again.', {}),
  network_range_allowed: event('org', "The operator opened addresses for the organization's sandboxes.", {
    range: 'text',
  }),
  network_range_disallowed: event('org', "The operator closed addresses for the organization's sandboxes again.", {
    range: 'text',
  }),
  intercept_authority_replaced: event(
    'org',
    'The operator replaced the certificate authority of intercepted TLS connections, for runs from now on.',
    {},
  ),
  org_plan_changed: event('quota', 'The organization was put on another plan.', { plan: 'text', from: 'text' }),
  plan_changed: event('quota', "The limits or prices of the organization's plan changed.", {
    plan: 'text',
    limits: 'object',
    prices: 'object?',
    from: 'object',
  }),
  quota_changed: event('quota', 'Limits of the organization were set or cleared.', {
    overrides: 'object',
    from: 'object',
  }),
  pool_exhausted: event(
    'quota',
    'Included hours of the month are used up: sandboxes are stopped and starts are refused.',
    {
      pool: 'text',
      included_hours: 'number',
      used_hours: 'number',
    },
  ),
  member_added: event('member', 'A person became a member.', member),
  member_role_changed: event('member', "A member's role changed.", { ...member, from: 'text' }),
  member_removed: event('member', 'A person is no longer a member, and the sessions ended.', member),
  member_operator_changed: event('member', 'A member became an operator of the installation, or is one no longer.', {
    ...member,
    is_operator: 'boolean',
  }),
  sign_in_link_created: event('member', 'A link was made with which a member signs in once.', {
    ...member,
    expires_at: 'instant',
  }),
  member_signed_in: event('member', 'A member signed in; `by` is `link` or `oidc`.', { ...member, by: 'text' }),
  api_key_created: event('api_key', 'An API key was created.', { ...key, scopes: 'texts', expires_at: 'instant?' }),
  api_key_revoked: event('api_key', 'An API key was revoked.', key),
  ssh_key_added: event('ssh_key', 'An SSH key was added.', sshKey),
  ssh_key_removed: event('ssh_key', 'An SSH key was removed, and its connections ended.', sshKey),
  registry_credential_saved: event('registry_credential', 'A registry credential was saved.', credential),
  registry_credential_deleted: event('registry_credential', 'A registry credential was deleted.', credential),
  webhook_created: event('webhook', 'A webhook was created.', webhook),
  webhook_updated: event('webhook', 'A webhook changed; `changes` names the fields.', { ...webhook, changes: 'texts' }),
  webhook_secret_rotated: event(
    'webhook',
    'A webhook got a new secret. The old one stays valid for 24 hours.',
    webhook,
  ),
  webhook_paused: event(
    'webhook',
    'A webhook was paused: `requested`, `gone` (its endpoint answered 410), or `failing` (for three days).',
    { ...webhook, reason: 'text' },
  ),
  webhook_resumed: event('webhook', 'A paused webhook sends again.', webhook),
  webhook_delivery_resent: event('webhook', 'A delivery of a webhook is to be sent again.', {
    ...webhook,
    delivery_id: 'uuid',
  }),
  webhook_deliveries_dropped: event('webhook', 'Deliveries that waited for too long, or were too many, were dropped.', {
    ...webhook,
    count: 'number',
  }),
  webhook_deleted: event('webhook', 'A webhook was deleted with its deliveries.', webhook),
  volume_created: event('volume', 'A volume was created.', {
    volume_id: 'uuid',
    kind: 'text',
    name: 'text?',
    capacity_gib: 'number?',
  }),
  volume_updated: event('volume', "A volume's cap or labels changed.", {
    volume_id: 'uuid',
    name: 'text?',
    to: 'object',
    from: 'object',
  }),
  volume_deletion_scheduled: event('volume', 'A volume was scheduled for deletion.', {
    volume_id: 'uuid',
    name: 'text',
  }),
  volume_deleted: event('volume', 'A volume and its files were deleted.', { volume_id: 'uuid', name: 'text' }),
  volume_file_written: event('volume', 'A file was written through the API.', { ...file, size_bytes: 'number' }),
  volume_folder_made: event('volume', 'A folder was created through the API.', file),
  volume_file_copied: event('volume', 'A file or folder was copied through the API.', { ...file, from: 'text' }),
  volume_file_renamed: event('volume', 'A file or folder was renamed through the API.', { ...file, from: 'text' }),
  volume_file_removed: event('volume', 'A file or folder was removed through the API.', {
    ...file,
    is_recursive: 'boolean',
  }),
  preview_created: event('sandbox', 'A port of a sandbox was opened to a link or to everybody.', {
    ...preview,
    expires_at: 'instant?',
  }),
  preview_revoked: event('sandbox', 'A port of a sandbox was closed again.', preview),
  snapshot_requested: event('sandbox', 'A snapshot of a sandbox was asked for.', { ...snapshot, sandbox_id: 'uuid' }),
  snapshot_created: event('sandbox', 'A snapshot of a sandbox was made.', {
    ...snapshot,
    sandbox_id: 'uuid',
    size_bytes: 'number',
  }),
  snapshot_failed: event('sandbox', 'A snapshot of a sandbox could not be made.', {
    name: 'text',
    snapshot_id: 'uuid?',
    sandbox_id: 'uuid',
    message: 'text',
  }),
  snapshot_deleted: event('sandbox', 'A snapshot was deleted.', snapshot),
  sandbox_created: event('sandbox', 'A sandbox was created.', { ...sandbox, slug: 'text', image: 'text' }),
  sandbox_renamed: event('sandbox', 'The name or slug of a sandbox changed.', {
    ...sandbox,
    slug: 'text',
    from: 'object',
  }),
  sandbox_secrets_changed: event('sandbox', 'Secrets of a sandbox changed; `changes` has their names and no values.', {
    ...sandbox,
    changes: 'texts',
  }),
  sandbox_starting: event('sandbox', 'A start was admitted.', transition),
  sandbox_waiting: event('sandbox', 'No worker has the capacity for a run now.', transition),
  sandbox_placed: event('sandbox', 'A run was placed on a worker.', transition),
  sandbox_running: event(
    'sandbox',
    'The sandbox runs; `facts` are its isolation, its level and the image digest.',
    transition,
  ),
  sandbox_stopping: event('sandbox', 'The sandbox was asked to stop.', transition),
  sandbox_stopped: event('sandbox', 'The sandbox stopped without a failure.', transition),
  sandbox_failed: event('sandbox', 'The sandbox failed or could not start; `message` says why.', transition),
  sandbox_out_of_memory: event(
    'sandbox',
    'The kernel killed processes of a sandbox because memory ran out; `killed` counts those of the run.',
    { ...sandbox, run_id: 'uuid', worker: 'text', killed: 'number', memory_mib: 'number' },
  ),
  worker_disk_short: event(
    'worker',
    'The disk of a worker is full up to its reserve: it refuses pulls and new disks.',
    workerDisk,
  ),
  worker_disk_freed: event('worker', 'The disk of a worker has free space again.', workerDisk),
  sandbox_deleted: event('sandbox', 'The sandbox was deleted.', { ...sandbox, slug: 'text' }),
  sandbox_channel_opened: event('sandbox', 'A client opened the command channel of a sandbox.', {
    ...sandbox,
    run_id: 'uuid',
  }),
} as const

export type EventType = keyof typeof EVENT_TYPES
export type EventCategory = (typeof EVENT_TYPES)[EventType]['category']

/** Every category, in the order of the catalogue. */
export const EVENT_CATEGORIES: readonly EventCategory[] = [
  ...new Set(Object.values(EVENT_TYPES).map(({ category }) => category)),
]

/** Whether a text is the type of an event. */
export function isEventType(text: string): text is EventType {
  return Object.hasOwn(EVENT_TYPES, text)
}

/** The event types of a category. */
export function typesOfCategory(category: EventCategory): readonly EventType[] {
  const types = Object.keys(EVENT_TYPES) as EventType[] // the keys of the catalogue
  return types.filter((type) => EVENT_TYPES[type].category === category)
}

type Required<F extends Facts> = {
  readonly [N in keyof F as F[N] extends `${string}?` ? never : N]: F[N] extends Kind ? Value[F[N]] : never
}
type Optional<F extends Facts> = {
  readonly [N in keyof F as F[N] extends `${string}?` ? N : never]?: F[N] extends `${infer K extends Kind}?`
    ? Value[K]
    : never
}

/** The payload of one event type. */
export type EventPayload<Type extends EventType> = Required<(typeof EVENT_TYPES)[Type]['facts']> &
  Optional<(typeof EVENT_TYPES)[Type]['facts']>

/** An event type with its payload. */
export type TypedEvent = {
  [Type in EventType]: { readonly event_type: Type; readonly payload: EventPayload<Type> }
}[EventType]

/**
 * The catalogue of audit events: each type with its category, what happened, and the facts of its payload. The types of
 * the payloads, the check of what is written, and docs/events.md all follow from it.
 */

/** What a fact is. A trailing `?` says that it may be absent. */
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

function event<const Given extends Facts>(category: string, what: string, facts: Given) {
  return { category, what, facts }
}

const sandbox = { sandbox_id: 'uuid', name: 'text' } as const
/** `cause` says in one word why (`requested`, `idle_timeout`, …), `message` in a sentence what failed. */
const transition = {
  ...sandbox,
  run_id: 'uuid?',
  cause: 'text',
  message: 'text?',
  worker: 'text?',
  facts: 'object?',
} as const
const member = { member_id: 'uuid', user_id: 'uuid', role: 'text' } as const
const key = { api_key_id: 'uuid', name: 'text' } as const
const credential = { credential_id: 'uuid', host: 'text', username: 'text' } as const
const file = { volume_id: 'uuid', path: 'text' } as const

export const EVENT_TYPES = {
  org_created: event('org', 'An organization was made.', { name: 'text', slug: 'text' }),
  org_suspended: event('org', 'Its sandboxes are stopped and it may start nothing.', { reason: 'text?' }),
  org_resumed: event('org', 'It may start sandboxes again.', {}),
  org_plan_changed: event('quota', 'It was given another plan.', { plan: 'text', from: 'text' }),
  plan_changed: event('quota', 'The limits or prices of its plan were changed.', {
    plan: 'text',
    limits: 'object',
    prices: 'object?',
    from: 'object',
  }),
  quota_changed: event('quota', 'Limits of its own were set or cleared.', { overrides: 'object', from: 'object' }),
  pool_exhausted: event('quota', 'A monthly pool is used up: its sandboxes are stopped and starts refused.', {
    pool: 'text',
    included_hours: 'number',
    used_hours: 'number',
  }),
  member_added: event('member', 'A person became a member.', member),
  member_role_changed: event('member', 'A member was given another role.', { ...member, from: 'text' }),
  member_removed: event('member', 'A person is no longer a member.', member),
  api_key_created: event('api_key', 'An API key was made.', { ...key, scopes: 'texts', expires_at: 'instant?' }),
  api_key_revoked: event('api_key', 'An API key was revoked.', key),
  registry_credential_saved: event('registry_credential', 'A credential for a registry was saved.', credential),
  registry_credential_deleted: event('registry_credential', 'A credential for a registry was deleted.', credential),
  volume_created: event('volume', 'A volume was made.', {
    volume_id: 'uuid',
    kind: 'text',
    name: 'text?',
    capacity_gib: 'number?',
  }),
  volume_updated: event('volume', "A volume's cap or labels were changed.", {
    volume_id: 'uuid',
    name: 'text?',
    to: 'object',
    from: 'object',
  }),
  volume_deletion_scheduled: event('volume', 'A volume is to be deleted.', { volume_id: 'uuid', name: 'text' }),
  volume_deleted: event('volume', 'A volume and all that was in it is gone.', { volume_id: 'uuid', name: 'text' }),
  volume_file_written: event('volume', 'A file was written through the API.', { ...file, size_bytes: 'number' }),
  volume_folder_made: event('volume', 'A folder was made through the API.', file),
  volume_file_copied: event('volume', 'A file or folder was copied through the API.', { ...file, from: 'text' }),
  volume_file_renamed: event('volume', 'A file or folder was renamed through the API.', { ...file, from: 'text' }),
  volume_file_removed: event('volume', 'A file or folder was removed through the API.', {
    ...file,
    is_recursive: 'boolean',
  }),
  sandbox_created: event('sandbox', 'A sandbox was made.', { ...sandbox, slug: 'text', image: 'text' }),
  sandbox_renamed: event('sandbox', 'Its name or slug was changed.', { ...sandbox, slug: 'text', from: 'object' }),
  sandbox_starting: event('sandbox', 'A start was admitted.', transition),
  sandbox_waiting: event('sandbox', 'No worker has room for it now.', transition),
  sandbox_placed: event('sandbox', 'A worker was given it.', transition),
  sandbox_running: event('sandbox', 'It runs; `facts` are the isolation and image digest in force.', transition),
  sandbox_stopping: event('sandbox', 'It was asked to stop.', transition),
  sandbox_stopped: event('sandbox', 'It ended well.', transition),
  sandbox_failed: event('sandbox', 'It ended badly, or could not start; `message` says why.', transition),
  sandbox_deleted: event('sandbox', 'It was deleted.', { ...sandbox, slug: 'text' }),
  sandbox_channel_opened: event('sandbox', 'A client opened its command channel.', { ...sandbox, run_id: 'uuid' }),
} as const

export type EventType = keyof typeof EVENT_TYPES

type Required<F extends Facts> = {
  readonly [N in keyof F as F[N] extends `${string}?` ? never : N]: F[N] extends Kind ? Value[F[N]] : never
}
type Optional<F extends Facts> = {
  readonly [N in keyof F as F[N] extends `${string}?` ? N : never]?: F[N] extends `${infer K extends Kind}?`
    ? Value[K]
    : never
}

/** The payload of an event of one type. */
export type EventPayload<Type extends EventType> = Required<(typeof EVENT_TYPES)[Type]['facts']> &
  Optional<(typeof EVENT_TYPES)[Type]['facts']>

/** An event's type with the payload that belongs to it. */
export type TypedEvent = {
  [Type in EventType]: { readonly event_type: Type; readonly payload: EventPayload<Type> }
}[EventType]

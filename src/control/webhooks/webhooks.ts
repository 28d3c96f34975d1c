import { asId, type WebhookId } from '../../domain/ids.ts'
import { isPlainText } from '../../domain/names.ts'
import type { OrgActor } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import { invalidRequest, refusalProblem } from '../../domain/refusal.ts'
import { etagOf, requireMatch, type IfMatch } from '../../domain/requests/etag.ts'
import { formatWebhookSecret, SECRET_BYTES } from '../../domain/webhooks/message.ts'
import { isWebhookUrl, WEBHOOK_URL_RULE } from '../../domain/webhooks/webhook-url.ts'
import {
  DESCRIPTION_MAX_CHARS,
  hostOfWebhook,
  OLD_SECRET_MS,
  OLD_SECRETS_MAX,
  webhookSealContext,
  WEBHOOKS_MAX,
  type Webhook,
  type WebhookFilter,
} from '../../domain/webhooks/webhook.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import { notifyAtCommit } from '../../store/postgres/notification-connection.ts'
import * as deliveries from '../../store/webhooks/deliveries.ts'
import * as recordDeliveries from '../../store/webhooks/record-deliveries.ts'
import * as webhooks from '../../store/webhooks/webhooks.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import type { IdempotentAttempt } from '../requests/idempotency.ts'
import { readPage, type Page, type PageInput } from '../requests/page.ts'
import { WEBHOOKS_TOPIC } from '../topics.ts'
import type { WebhookSender } from './send-message.ts'

export type WebhookRuleDeps = { readonly webhooks: Pick<WebhookSender, 'urlRule'> }

type InOrg = Pick<OrgActor, 'org_id'>

export type NewWebhook = WebhookFilter &
  Pick<Webhook, 'url' | 'description'> & { readonly attempt?: IdempotentAttempt | null }

/** A webhook with its secret, which is shown only once. */
export type WebhookWithSecret = { readonly webhook: Webhook; readonly secret: string }

/**
 * Creates a webhook, which gets the events from then on. Throws `invalid_request` for a URL that webhooks may not have, and
 * `quota_exceeded`.
 */
export async function createWebhook(
  deps: WriteDeps & Pick<BaseDeps, 'random' | 'seal'> & WebhookRuleDeps,
  acting: OrgActor,
  { attempt = null, ...input }: NewWebhook,
): Promise<WebhookWithSecret> {
  const { org_id } = acting
  if (attempt !== null && attempt.savedNote !== null) {
    const [id = '', secret = ''] = attempt.savedNote.split(' ')
    return { webhook: await getWebhook(deps, acting, asId<WebhookId>(id)), secret }
  }
  validate(deps, input)
  const id = asId<WebhookId>(deps.uuids.next())
  const secret = formatWebhookSecret(deps.random.bytes(SECRET_BYTES))
  const secret_sealed = deps.seal.seal(secret, webhookSealContext(org_id, id))
  return await deps.db.transaction(org_id, async (tx) => {
    const { used, max } = await webhooks.lockUse(tx, org_id)
    const most = Math.min(max ?? WEBHOOKS_MAX, WEBHOOKS_MAX)
    const row = { ...input, id, secret_sealed, created_at: deps.clock.now() }
    const webhook = await webhooks.insert(tx, org_id, row, most)
    if (webhook === null) throw tooMany(most, used)
    await attempt?.saveNote(tx, `${id} ${secret}`) // the note is sealed before it is stored
    await recordEvent(deps, tx, { ...acting, event_type: 'webhook_created', payload: factsOf(webhook) })
    await notifyAtCommit(tx, [WEBHOOKS_TOPIC])
    return { webhook, secret }
  })
}

/** A page of the organization's webhooks, newest first. Throws `invalid_request` for a bad cursor. */
export function listWebhooks(deps: Pick<BaseDeps, 'db'>, { org_id }: InOrg, input: PageInput): Promise<Page<Webhook>> {
  return readPage('webhooks', input, (after, count) =>
    deps.db.asOrg(org_id, (q) => webhooks.page(q, org_id, { after, count })),
  )
}

/** A webhook of the organization. Throws `webhook_not_found`. */
export async function getWebhook(deps: Pick<BaseDeps, 'db'>, { org_id }: InOrg, id: WebhookId): Promise<Webhook> {
  const found = await deps.db.asOrg(org_id, (q) => webhooks.find(q, org_id, id))
  if (found === null) throw new Problem('webhook_not_found')
  return found
}

const FILTERS = ['event_types', 'category', 'sandbox_id', 'actor'] as const satisfies readonly (keyof WebhookFilter)[]

/** What an update changes. Absent: it stays. */
export type WebhookChanges = Partial<WebhookFilter & Pick<Webhook, 'url' | 'description' | 'paused'>>

/**
 * Changes a webhook. A paused one keeps what it would have sent, and sends it when it resumes. Other filters apply to events from then on.
 * Throws `webhook_not_found`, `precondition_failed`, and `invalid_request` for a URL that webhooks may not have.
 */
export async function updateWebhook(
  deps: WriteDeps & WebhookRuleDeps,
  acting: OrgActor,
  { id, changes, ifMatch = null }: { id: WebhookId; changes: WebhookChanges; ifMatch?: IfMatch | null },
): Promise<Webhook> {
  const { org_id } = acting
  const hasFilters = FILTERS.some((name) => name in changes)
  return await deps.db.transaction(hasFilters ? 'system' : org_id, async (tx) => {
    if (hasFilters) await recordDeliveries.lockRecording(tx)
    const from = await lock(tx, acting, { id, ifMatch })
    const { paused = from.paused, ...fields } = changes
    const pause = {
      paused,
      paused_at: paused ? (from.paused_at ?? deps.clock.now()) : null,
      pause_reason: paused ? (from.pause_reason ?? 'requested') : null,
    } as const
    const to: Webhook = { ...from, ...fields, ...pause }
    validate(deps, to)
    const facts = factsOf(to)
    const changed = Object.keys(fields).filter(
      (name) => JSON.stringify(Object(to)[name]) !== JSON.stringify(Object(from)[name]),
    )
    if (FILTERS.some((name) => changed.includes(name))) await recordDeliveries.recordDue(tx, id, deps.clock.now())
    await webhooks.update(tx, org_id, to)
    if (changed.length > 0)
      await recordEvent(deps, tx, { ...acting, event_type: 'webhook_updated', payload: { ...facts, changes: changed } })
    if (paused && !from.paused)
      await recordEvent(deps, tx, {
        ...acting,
        event_type: 'webhook_paused',
        payload: { ...facts, reason: 'requested' },
      })
    if (!paused && from.paused) {
      await deliveries.retryAtOnce(tx, org_id, id)
      await recordEvent(deps, tx, { ...acting, event_type: 'webhook_resumed', payload: facts })
    }
    await notifyAtCommit(tx, [WEBHOOKS_TOPIC])
    return to
  })
}

/**
 * Gives a webhook a new secret. The old one signs too for 24 hours, so that the receiver can change in between. Throws
 * `webhook_not_found`, and `quota_exceeded` for too many rotations in that time.
 */
export async function rotateWebhookSecret(
  deps: WriteDeps & Pick<BaseDeps, 'random' | 'seal'>,
  acting: OrgActor,
  id: WebhookId,
): Promise<{ readonly secret: string; readonly old_secret_expires_at: Date }> {
  const { org_id } = acting
  const secret = formatWebhookSecret(deps.random.bytes(SECRET_BYTES))
  return await deps.db.transaction(org_id, async (tx) => {
    const from = await webhooks.lock(tx, org_id, id)
    if (from === null) throw new Problem('webhook_not_found')
    const now = deps.clock.now()
    const until = new Date(now.getTime() + OLD_SECRET_MS)
    const old = from.old_secrets.filter((one) => new Date(one.until) > now)
    if (old.length >= OLD_SECRETS_MAX) throw tooManySecrets()
    const replaced = { sealed: from.secret_sealed.toString('base64'), until: until.toISOString() }
    const secret_sealed = deps.seal.seal(secret, webhookSealContext(org_id, id))
    await webhooks.setSecrets(tx, org_id, id, { secret_sealed, old_secrets: [replaced, ...old] })
    await recordEvent(deps, tx, { ...acting, event_type: 'webhook_secret_rotated', payload: factsOf(from) })
    await notifyAtCommit(tx, [WEBHOOKS_TOPIC])
    return { secret, old_secret_expires_at: until }
  })
}

/** Deletes a webhook with its deliveries. Throws `webhook_not_found` and `precondition_failed`. */
export async function deleteWebhook(
  deps: WriteDeps,
  acting: OrgActor,
  { id, ifMatch = null }: { id: WebhookId; ifMatch?: IfMatch | null },
): Promise<void> {
  await deps.db.transaction(acting.org_id, async (tx) => {
    const from = await lock(tx, acting, { id, ifMatch })
    await webhooks.remove(tx, acting.org_id, id)
    await recordEvent(deps, tx, { ...acting, event_type: 'webhook_deleted', payload: factsOf(from) })
    await notifyAtCommit(tx, [WEBHOOKS_TOPIC])
  })
}

/** What events tell about a webhook. */
export function factsOf(webhook: Pick<Webhook, 'id' | 'url'>): { readonly webhook_id: string; readonly host: string } {
  return { webhook_id: webhook.id, host: hostOfWebhook(webhook) }
}

async function lock(
  tx: Queryable,
  { org_id }: InOrg,
  { id, ifMatch }: { readonly id: WebhookId; readonly ifMatch: IfMatch | null },
): Promise<Webhook> {
  const found = await webhooks.lock(tx, org_id, id)
  if (found === null) throw new Problem('webhook_not_found')
  const { secret_sealed: _sealed, old_secrets: _old, ...webhook } = found
  requireMatch(ifMatch, etagOf(JSON.stringify(webhook)))
  return webhook
}

function validate(
  { webhooks: { urlRule } }: WebhookRuleDeps,
  { url, description }: Pick<Webhook, 'url' | 'description'>,
) {
  // The URL may have a secret, so the message doesn't repeat it.
  if (!isWebhookUrl(urlRule(), url))
    throw refusalProblem({ code: 'invalid_request', field: 'url', seen: null, accepted: WEBHOOK_URL_RULE })
  if (description.length > DESCRIPTION_MAX_CHARS || !isPlainText(description))
    throw invalidRequest(
      'description',
      description,
      `at most ${String(DESCRIPTION_MAX_CHARS)} characters, no control characters`,
    )
}

function tooMany(max: number, current: number): Problem {
  return new Problem('quota_exceeded', {
    message: `quota exceeded: the organization may have ${String(max)} webhooks and has ${String(current)}`,
    details: {
      limit: 'max_webhooks',
      max,
      current,
      requested: 1,
      how_to_change: 'delete one, or ask the operator for another plan',
    },
  })
}

function tooManySecrets(): Problem {
  const max = OLD_SECRETS_MAX + 1
  return new Problem('quota_exceeded', {
    message: `quota exceeded: a webhook has at most ${String(max)} secrets that sign at the same time`,
    details: {
      limit: 'webhook_secrets',
      max,
      current: max,
      requested: 1,
      how_to_change: 'wait until an old secret expires',
    },
  })
}

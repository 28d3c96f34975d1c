/** Webhooks. Their secrets are stored sealed. */
import type { OrgId, WebhookId } from '../../domain/ids.ts'
import type { PauseReason, Webhook } from '../../domain/webhooks/webhook.ts'
import * as orgs from '../orgs/orgs.ts'
import type { Queryable } from '../postgres/database.ts'

const COLUMNS = `id, url, description, event_types, category, sandbox_id, actor, paused_at IS NOT NULL AS paused, paused_at, pause_reason,
  created_at`

/** A secret that was replaced: sealed, as base64, and until when it signs too. */
export type OldSecret = { readonly sealed: string; readonly until: string }

/** The secrets of a webhook. */
export type SealedSecrets = { readonly secret_sealed: Buffer; readonly old_secrets: readonly OldSecret[] }

/** Where a webhook's deliveries go. */
export type WebhookTarget = SealedSecrets & Pick<Webhook, 'id' | 'url'> & { readonly org_id: OrgId }

/** Adds a webhook. Returns null if the organization already has `max`. */
export async function insert(
  tx: Queryable,
  org: OrgId,
  webhook: Omit<Webhook, 'paused' | 'paused_at' | 'pause_reason'> & { readonly secret_sealed: Buffer },
  max: number,
): Promise<Webhook | null> {
  const { rows } = await tx.query<Webhook>({
    name: 'webhooks.insert',
    text: `INSERT INTO webhooks (id, org_id, url, description, event_types, category, sandbox_id, actor, secret_sealed, created_at)
           SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10 WHERE (SELECT count(*) FROM webhooks WHERE org_id = $2) < $11
           RETURNING ${COLUMNS}`,
    values: [webhook.id, org, webhook.url, webhook.description, webhook.event_types, webhook.category,
      webhook.sandbox_id, webhook.actor, webhook.secret_sealed, webhook.created_at, max], // prettier-ignore
  })
  return rows[0] ?? null
}

/** The number of webhooks of an organization, and the most that its plan allows. Null: any number. Locks the organization. */
export async function lockUse(
  tx: Queryable,
  org: OrgId,
): Promise<{ readonly used: number; readonly max: number | null }> {
  await orgs.lock(tx, org)
  const { rows } = await tx.query<{ readonly used: number; readonly max: number | null }>({
    text: `SELECT max_webhooks AS max, (SELECT count(*)::integer FROM webhooks WHERE org_id = $1) AS used
           FROM org_limits WHERE org_id = $1`,
    values: [org],
  })
  return rows[0] ?? { used: 0, max: 0 }
}

/** The first `count` webhooks of an organization after the one with the id `after`, the newest first. */
export async function page(
  q: Queryable,
  org: OrgId,
  { after, count }: { readonly after: string | null; readonly count: number },
): Promise<readonly Webhook[]> {
  const { rows } = await q.query<Webhook>({
    name: 'webhooks.page',
    text: `SELECT ${COLUMNS} FROM webhooks WHERE org_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3`,
    values: [org, after, count],
  })
  return rows
}

/** A webhook of an organization, or null. */
export async function find(q: Queryable, org: OrgId, id: WebhookId): Promise<Webhook | null> {
  const { rows } = await q.query<Webhook>({
    name: 'webhooks.find',
    text: `SELECT ${COLUMNS} FROM webhooks WHERE org_id = $1 AND id = $2`,
    values: [org, id],
  })
  return rows[0] ?? null
}

/** A webhook of an organization, which nothing else changes until the transaction ends. Null: there is none. */
export async function lock(tx: Queryable, org: OrgId, id: WebhookId): Promise<(Webhook & SealedSecrets) | null> {
  const { rows } = await tx.query<Webhook & SealedSecrets>({
    name: 'webhooks.lock',
    text: `SELECT ${COLUMNS}, secret_sealed, old_secrets FROM webhooks WHERE org_id = $1 AND id = $2 FOR UPDATE`,
    values: [org, id],
  })
  return rows[0] ?? null
}

/** Where these webhooks send to. Without those that are paused or deleted. Reads all organizations. */
export async function targets(q: Queryable, ids: readonly WebhookId[]): Promise<readonly WebhookTarget[]> {
  const { rows } = await q.query<WebhookTarget>({
    name: 'webhooks.targets',
    text: `SELECT id, org_id, url, secret_sealed, old_secrets FROM webhooks WHERE id = ANY($1::uuid[]) AND paused_at IS NULL`,
    values: [ids],
  })
  return rows
}

/** Where a webhook sends to, even if it is paused. Null: the organization has none with this id. */
export async function findTarget(q: Queryable, org: OrgId, id: WebhookId): Promise<WebhookTarget | null> {
  const { rows } = await q.query<WebhookTarget>({
    name: 'webhooks.findTarget',
    text: 'SELECT id, org_id, url, secret_sealed, old_secrets FROM webhooks WHERE org_id = $1 AND id = $2',
    values: [org, id],
  })
  return rows[0] ?? null
}

/** Writes what an update changed. */
export async function update(tx: Queryable, org: OrgId, webhook: Webhook): Promise<void> {
  await tx.query({
    name: 'webhooks.update',
    text: `UPDATE webhooks SET url = $3, description = $4, event_types = $5, category = $6, sandbox_id = $7, actor = $8,
             paused_at = $9, pause_reason = $10 WHERE org_id = $1 AND id = $2`,
    values: [org, webhook.id, webhook.url, webhook.description, webhook.event_types, webhook.category,
      webhook.sandbox_id, webhook.actor, webhook.paused_at, webhook.pause_reason], // prettier-ignore
  })
}

/** Replaces the secrets of a webhook. */
export async function setSecrets(tx: Queryable, org: OrgId, id: WebhookId, secrets: SealedSecrets): Promise<void> {
  await tx.query({
    name: 'webhooks.setSecrets',
    text: 'UPDATE webhooks SET secret_sealed = $3, old_secrets = $4 WHERE org_id = $1 AND id = $2',
    values: [org, id, secrets.secret_sealed, JSON.stringify(secrets.old_secrets)],
  })
}

/** Pauses a webhook of any organization. Returns null if it is paused or gone. */
export async function pause(
  tx: Queryable,
  { id, reason, now }: { readonly id: WebhookId; readonly reason: PauseReason; readonly now: Date },
): Promise<{ readonly org_id: OrgId; readonly url: string } | null> {
  const { rows } = await tx.query<{ readonly org_id: OrgId; readonly url: string }>({
    name: 'webhooks.pause',
    text: `UPDATE webhooks SET paused_at = $2, pause_reason = $3 WHERE id = $1 AND paused_at IS NULL RETURNING org_id, url`,
    values: [id, now, reason],
  })
  return rows[0] ?? null
}

/** Deletes a webhook with its deliveries. */
export async function remove(tx: Queryable, org: OrgId, id: WebhookId): Promise<void> {
  await tx.query({
    name: 'webhooks.remove',
    text: 'DELETE FROM webhooks WHERE org_id = $1 AND id = $2',
    values: [org, id],
  })
}

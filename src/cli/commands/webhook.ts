import type { Command } from 'commander'
import { requireSameSealingKey } from '../../control/orgs/sealing-key.ts'
import { listDeliveries, resendDelivery } from '../../control/webhooks/deliveries.ts'
import type { WebhookSender } from '../../control/webhooks/send-message.ts'
import { testWebhook } from '../../control/webhooks/test-webhook.ts'
import {
  createWebhook, deleteWebhook, listWebhooks, rotateWebhookSecret, updateWebhook, type WebhookChanges,
} from '../../control/webhooks/webhooks.ts' // prettier-ignore
import { EVENT_CATEGORIES, isEventType, type EventType } from '../../domain/events/event-types.ts'
import { asId, type EventId, type WebhookId } from '../../domain/ids.ts'
import type { OrgActor } from '../../domain/orgs/caller.ts'
import { DELIVERY_STATUSES, type Attempt, type DeliveryStatus } from '../../domain/webhooks/webhook.ts'
import { systemRandom } from '../../lib/random.ts'
import { keyFingerprint, makeSeal, type Seal } from '../../lib/seal.ts'
import { isUuid } from '../../lib/uuid.ts'
import { runs, UsageError, type Call } from '../command.ts'
import { openDataFolder } from '../server/data-folder.ts'
import { openWebhookSender } from '../server/open-webhooks.ts'
import { orgCommand, withOrg, type OperatorDeps } from './operator.ts'
import { printPages } from './output.ts'

/** Defines `sandyard webhook`, which manages the webhooks of an organization. */
export function defineWebhook(webhook: Command): void {
  runs(
    orgCommand(webhook, 'create <url>', 'create a webhook, and print its secret, which is shown only here')
      .option('--types <types>', 'only events of these types, separated by commas')
      .option('--category <category>', 'only events of this category')
      .option('--sandbox <id>', 'only events of this sandbox')
      .option('--description <text>', 'a note'),
    create,
  )
  runs(orgCommand(webhook, 'list', 'list the webhooks, without secrets'), list)
  runs(orgCommand(webhook, 'test <id>', 'send a test message at once, and print the reply'), test)
  runs(orgCommand(webhook, 'pause <id>', 'send nothing, and keep what would have been sent'), (call) =>
    change(call, { paused: true }),
  )
  runs(orgCommand(webhook, 'resume <id>', 'send again, first what was kept'), (call) => change(call, { paused: false }))
  runs(orgCommand(webhook, 'move <id> <url>', 'send to another URL'), (call) =>
    change(call, { url: call.args[1] ?? '' }),
  )
  runs(orgCommand(webhook, 'rotate <id>', 'print a new secret; the old one stays valid for 24 hours'), rotate)
  runs(
    orgCommand(webhook, 'deliveries <id>', 'list the deliveries, those of the newest events first').option(
      '--status <status>',
      'only deliveries with this status',
    ),
    deliveries,
  )
  runs(orgCommand(webhook, 'resend <id> <delivery>', 'send a delivery again'), resend)
  runs(orgCommand(webhook, 'delete <id>', 'delete a webhook with its deliveries'), remove)
}

type SealedDeps = OperatorDeps & { readonly seal: Seal; readonly webhooks: WebhookSender }

/** Runs `work` as `withOrg` does, with what opens secrets and sends messages. */
async function withSecrets(call: Call, work: (deps: SealedDeps, acting: OrgActor) => Promise<void>): Promise<void> {
  const { config } = call
  const { sealingKey } = await openDataFolder(config.dataDir, systemRandom, config.secretKey)
  const webhooks = openWebhookSender(config)
  await withOrg(call, async (deps, acting) => {
    await requireSameSealingKey(deps.db, keyFingerprint(sealingKey))
    await work({ ...deps, webhooks, seal: makeSeal(sealingKey, systemRandom) }, acting)
  })
  webhooks.http.close()
}

async function create(call: Call): Promise<void> {
  const { args: [url = ''], texts } = call // prettier-ignore
  const types = texts['types']
  const category = readOne('category', EVENT_CATEGORIES, texts['category'])
  const event_types = types === undefined ? null : types.split(',').map(readType)
  const sandbox_id = texts['sandbox'] === undefined ? null : readId('--sandbox', texts['sandbox'])
  const description = texts['description'] ?? ''
  await withSecrets(call, async (deps, acting) => {
    const input = { url, description, event_types, category, sandbox_id, actor: null }
    const { webhook, secret } = await createWebhook(deps, acting, input)
    process.stdout.write(`webhook ${webhook.id}\nsecret ${secret}\n`)
  })
}

async function list(call: Call): Promise<void> {
  await withOrg(call, async (deps, acting) => {
    await printPages(
      ['ID', 'URL', 'STATE', 'CREATED'],
      (input) => listWebhooks(deps, acting, input),
      ({ id, url, pause_reason, created_at }) => [
        id,
        url,
        pause_reason === null ? 'active' : `paused (${pause_reason})`,
        created_at.toISOString(),
      ],
    )
  })
}

async function test(call: Call): Promise<void> {
  await withSecrets(call, async (deps, acting) => {
    const { signal } = new AbortController()
    const { delivered, ...attempt } = await testWebhook(deps, acting, { id: idOf(call), signal })
    if (!delivered) throw new Error(`the test message was not delivered: ${describeAttempt(attempt)}`)
    process.stdout.write(`delivered: ${describeAttempt(attempt)}\n`)
  })
}

async function change(call: Call, changes: WebhookChanges): Promise<void> {
  const id = idOf(call)
  await withSecrets(call, async (deps, acting) => {
    const { paused, url } = await updateWebhook(deps, acting, { id, changes })
    process.stdout.write(`${id} is ${paused ? 'paused' : 'active'}: ${url}\n`)
  })
}

async function rotate(call: Call): Promise<void> {
  const id = idOf(call)
  await withSecrets(call, async (deps, acting) => {
    const { secret, old_secret_expires_at } = await rotateWebhookSecret(deps, acting, id)
    process.stdout.write(`secret ${secret}\nthe old secret expires ${old_secret_expires_at.toISOString()}\n`)
  })
}

async function deliveries(call: Call): Promise<void> {
  const webhook_id = idOf(call)
  const status: DeliveryStatus | null = readOne('status', DELIVERY_STATUSES, call.texts['status'])
  await withOrg(call, async (deps, acting) => {
    await printPages(
      ['ID', 'EVENT', 'STATUS', 'ATTEMPTS', 'REPLY', 'NEXT ATTEMPT', 'CREATED'],
      (input) => listDeliveries(deps, acting, { ...input, webhook_id, status }),
      (one) => [
        one.id,
        one.event_type,
        one.status,
        String(one.attempts),
        one.attempts === 0 ? null : describeAttempt(one),
        one.next_attempt_at?.toISOString() ?? null,
        one.created_at.toISOString(),
      ],
    )
  })
}

async function resend(call: Call): Promise<void> {
  const [, delivery = ''] = call.args
  const key = { webhook_id: idOf(call), id: asId<EventId>(readId('the delivery', delivery)) }
  await withOrg(call, async (deps, acting) => {
    await resendDelivery(deps, acting, key)
    process.stdout.write(`${key.id} will be sent again\n`)
  })
}

async function remove(call: Call): Promise<void> {
  const id = idOf(call)
  await withOrg(call, async (deps, acting) => {
    await deleteWebhook(deps, acting, { id })
    process.stdout.write(`${id} is deleted\n`)
  })
}

function describeAttempt({
  reply_status,
  error,
  duration_ms,
}: Pick<Attempt, 'reply_status' | 'error' | 'duration_ms'>): string {
  return `${reply_status === null ? (error ?? 'no reply') : `status ${String(reply_status)}`} after ${String(duration_ms ?? 0)} ms`
}

function idOf({ args: [id = ''] }: Call): WebhookId {
  return asId<WebhookId>(readId('the webhook', id))
}

function readId(what: string, text: string): string {
  if (!isUuid(text)) throw new UsageError(`${what} is '${text}'; accepted: an id`)
  return text.toLowerCase()
}

function readType(text: string): EventType {
  if (isEventType(text)) return text
  throw new UsageError(`--types has '${text}'; accepted: types of audit events, such as sandbox_failed`)
}

function readOne<Value extends string>(flag: string, values: readonly Value[], text: string | undefined): Value | null {
  if (text === undefined) return null
  const found = values.find((value) => value === text)
  if (found === undefined) throw new UsageError(`--${flag} is '${text}'; accepted: ${values.join(', ')}`)
  return found
}

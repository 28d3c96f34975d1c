import type { WebhookId } from '../../domain/ids.ts'
import type { OrgActor } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import { TEST_MESSAGE_TYPE } from '../../domain/webhooks/message.ts'
import type { Attempt } from '../../domain/webhooks/webhook.ts'
import * as webhooks from '../../store/webhooks/webhooks.ts'
import type { BaseDeps } from '../deps.ts'
import { isDelivered, openTarget, sendMessage, type WebhookSender } from './send-message.ts'

export type TestResult = Attempt & { readonly delivered: boolean }

/** Sends a test message at once, even if the webhook is paused. It is no delivery and is not tried again. Throws `webhook_not_found`. */
export async function testWebhook(
  deps: Pick<BaseDeps, 'db' | 'clock' | 'uuids' | 'seal'> & { readonly webhooks: WebhookSender },
  { org_id }: Pick<OrgActor, 'org_id'>,
  { id, signal }: { readonly id: WebhookId; readonly signal: AbortSignal },
): Promise<TestResult> {
  const found = await deps.db.asOrg(org_id, (q) => webhooks.findTarget(q, org_id, id))
  if (found === null) throw new Problem('webhook_not_found')
  const data = { webhook_id: id, org_id }
  const body = JSON.stringify({ type: TEST_MESSAGE_TYPE, timestamp: deps.clock.now(), data })
  const target = openTarget(deps, found)
  const message = { id: deps.uuids.next(), body, signal }
  const { attempt } = await sendMessage({ clock: deps.clock, http: deps.webhooks.http }, target, message)
  return { delivered: isDelivered(attempt), ...attempt }
}

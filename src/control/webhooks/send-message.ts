import type { OutboundRule } from '../../domain/network/outbound-rule.ts'
import { retryAfterMs } from '../../domain/webhooks/retry-schedule.ts'
import { signMessage } from '../../domain/webhooks/message.ts'
import { webhookSealContext, type Attempt } from '../../domain/webhooks/webhook.ts'
import { PostFailed, type GuardedPost } from '../../lib/outbound/guarded-post.ts'
import type { WebhookTarget } from '../../store/webhooks/webhooks.ts'
import type { BaseDeps } from '../deps.ts'

/** How messages leave, and where to. */
export type WebhookSender = {
  readonly http: GuardedPost
  /** What URLs webhooks may have. The addresses in it may change. */
  readonly urlRule: () => OutboundRule
}

/** Where messages are sent to, and the secrets that sign them. The secrets are in the clear, so it is never stored or logged. */
export type OpenTarget = { readonly url: URL; readonly secrets: readonly string[] }

/** Opens the secrets of a webhook: the current one, and the old ones that have not expired. */
export function openTarget({ seal, clock }: Pick<BaseDeps, 'seal' | 'clock'>, target: WebhookTarget): OpenTarget {
  const context = webhookSealContext(target.org_id, target.id)
  const now = clock.now()
  const old = target.old_secrets.filter(({ until }) => new Date(until) > now)
  const sealed = [target.secret_sealed, ...old.map((one) => Buffer.from(one.sealed, 'base64'))]
  return { url: new URL(target.url), secrets: sealed.map((one) => seal.open(one, context)) }
}

/** An attempt, and the pause before the next one that the reply requests, in milliseconds. Null: it requests none. */
type SentMessage = { readonly attempt: Attempt; readonly retry_after_ms: number | null }

/** Sends a message once. Resolves with the reply or with the reason why there is none; rejects with the signal's reason. */
export async function sendMessage(
  { clock, http }: Pick<BaseDeps, 'clock'> & Pick<WebhookSender, 'http'>,
  { url, secrets }: OpenTarget,
  { id, body, signal }: { readonly id: string; readonly body: string; readonly signal: AbortSignal },
): Promise<SentMessage> {
  const startedMs = clock.monotonicMs()
  const headers = { 'content-type': 'application/json', ...signMessage({ id, body, at: clock.now() }, secrets) }
  const duration = (): number => Math.round(clock.monotonicMs() - startedMs)
  try {
    const reply = await http.send({ url, headers, body, signal })
    const attempt = {
      duration_ms: duration(),
      reply_status: reply.status,
      reply_body: asText(reply.body),
      error: null,
    }
    return { attempt, retry_after_ms: retryAfterMs(reply.retryAfter, clock.now()) }
  } catch (error) {
    if (!(error instanceof PostFailed)) throw error
    const attempt = { duration_ms: duration(), reply_status: null, reply_body: null, error: error.message }
    return { attempt, retry_after_ms: null }
  }
}

/** Whether an attempt delivered its message. */
export function isDelivered({ reply_status }: Pick<Attempt, 'reply_status'>): boolean {
  return reply_status !== null && reply_status >= 200 && reply_status <= 299
}

/** PostgreSQL stores no character 0. */
function asText(body: Buffer): string {
  return body.toString('utf8').replaceAll('\0', '')
}

import type { WebhookSender } from '../../src/control/webhooks/send-message.ts'
import { judgeWebhook, parseNamedDestination, type OutboundRule } from '../../src/domain/network/outbound-rule.ts'
import { makeGuardedPost } from '../../src/lib/outbound/guarded-post.ts'

/** Sends to public addresses, and to what is named. */
export function makeTestWebhooks(named: readonly string[] = ['127.0.0.0/8']): WebhookSender {
  const rule: OutboundRule = { named: named.flatMap((text) => parseNamedDestination(text) ?? []), own: [] }
  const judge: Parameters<typeof makeGuardedPost>[0]['judge'] = ({ url, address }) => judgeWebhook(rule, url, address)
  const limits = { connectMs: 2_000, totalMs: 5_000, bodyBytes: 1_024 }
  return { http: makeGuardedPost({ judge, limits }), urlRule: () => rule }
}

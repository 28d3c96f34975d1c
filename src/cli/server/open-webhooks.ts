import { networkInterfaces } from 'node:os'
import type { Config } from '../../config.ts'
import type { WebhookSender } from '../../control/webhooks/send-message.ts'
import { judgeWebhook, type OutboundRule } from '../../domain/network/outbound-rule.ts'
import { proxyFor } from '../../domain/network/proxy-rule.ts'
import { REPLY_BODY_BYTES } from '../../domain/webhooks/webhook.ts'
import { makeGuardedPost } from '../../lib/outbound/guarded-post.ts'

const LIMITS = { connectMs: 5_000, totalMs: 15_000, bodyBytes: REPLY_BODY_BYTES }

/** Opens what sends messages to webhooks. The operator opens private addresses by naming them. */
export function openWebhookSender({ webhooksAllowed, httpsProxy, noProxy }: Config): WebhookSender {
  const urlRule = (): OutboundRule => ({
    named: webhooksAllowed ?? [],
    own: Object.values(networkInterfaces()).flatMap((addresses) => (addresses ?? []).map(({ address }) => address)),
  })
  const rule = { proxy: httpsProxy, direct: noProxy ?? [] }
  const http = makeGuardedPost({
    judge: ({ url, address }) => judgeWebhook(urlRule(), url, address),
    proxyFor: (url) => proxyFor(rule, url),
    limits: LIMITS,
  })
  return { http, urlRule }
}

import { isIP } from 'node:net'
import { isPlainText } from '../names.ts'
import { judgeWebhook, type OutboundRule } from '../network/outbound-rule.ts'
import { URL_MAX_CHARS } from './webhook.ts'

/** Describes a valid URL of a webhook, for refusals. */
export const WEBHOOK_URL_RULE =
  `an https:// URL of at most ${String(URL_MAX_CHARS)} characters, without spaces, user, password and fragment, whose host is public or named by ` +
  'SANDYARD_WEBHOOKS_ALLOWED; http:// only to what that setting names'

/**
 * Whether a webhook may have this URL. Addresses in it are judged here. Names are judged with each connection, because their addresses
 * may change.
 */
export function isWebhookUrl(rule: OutboundRule, text: string): boolean {
  // URL.parse drops line breaks and leaves other control characters in, and the text is shown as it was given.
  const isText = text.length <= URL_MAX_CHARS && isPlainText(text) && !/\s/u.test(text)
  const url = isText ? URL.parse(text) : null
  if (url === null || url.hostname === '' || url.username !== '' || url.password !== '' || url.hash !== '') return false
  const host = url.hostname.replace(/^\[(.*)\]$/, '$1')
  if (isIP(host) !== 0) return judgeWebhook(rule, url, host) !== null
  return url.protocol === 'https:' || (url.protocol === 'http:' && rule.named.length > 0)
}

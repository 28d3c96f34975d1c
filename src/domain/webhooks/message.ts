/** The messages of webhooks, as the Standard Webhooks specification has them. */
import { createHmac } from 'node:crypto'

/** What a message carries: the event as the API shows it. */
export type MessageEvent = {
  readonly id: string
  readonly org_id: string
  readonly timestamp: Date
  readonly category: string
  readonly event_type: string
  readonly actor: unknown
  readonly payload: unknown
}

/** The type of the message that a test sends. No event has it. */
export const TEST_MESSAGE_TYPE = 'webhook_test'

/** The body of the message for an event. The same event always gives the same text. */
export function renderMessage({ id, org_id, timestamp, category, event_type, actor, payload }: MessageEvent): string {
  const data = { id, org_id, timestamp, category, event_type, actor, payload }
  return JSON.stringify({ type: event_type, timestamp, data })
}

const SECRET_PREFIX = 'whsec_'
/** The specification asks for 24 to 64 bytes. */
export const SECRET_BYTES = 32

/** Formats a secret from random bytes. */
export function formatWebhookSecret(bytes: Buffer): string {
  return SECRET_PREFIX + bytes.toString('base64')
}

/**
 * The headers that identify and sign a message. With several secrets there are several signatures, of which the receiver needs one.
 * `id` is the same for each attempt.
 */
export function signMessage(
  { id, body, at }: { readonly id: string; readonly body: string; readonly at: Date },
  secrets: readonly string[],
): Readonly<Record<string, string>> {
  const timestamp = String(Math.floor(at.getTime() / 1000))
  const signatures = secrets.map((secret) => {
    const key = Buffer.from(secret.slice(SECRET_PREFIX.length), 'base64')
    return `v1,${createHmac('sha256', key).update(`${id}.${timestamp}.${body}`).digest('base64')}`
  })
  return { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signatures.join(' ') }
}

import { timingSafeEqual } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { hashSecret } from '../../domain/orgs/api-key.ts'
import { bearerCredentialIn } from './bearer-credential.ts'

const LOOPBACK = /^(127\.|::1$|::ffff:127\.)/

/**
 * Why a request may not read metrics, or null if it may: it has the key, or no key is set and its client is on this
 * machine. A forwarded request may come from anywhere.
 */
export function refusalOfMetrics(
  { headers, socket }: Pick<IncomingMessage, 'headers' | 'socket'>,
  key: string | null,
): string | null {
  if (key !== null) {
    const given = bearerCredentialIn(headers.authorization) ?? ''
    if (timingSafeEqual(hashSecret(given), hashSecret(key))) return null
    return 'the metrics need the token of SANDYARD_METRICS_KEY as a bearer token'
  }
  const isForwarded = headers['x-forwarded-for'] !== undefined || headers['forwarded'] !== undefined
  if (!isForwarded && LOOPBACK.test(socket.remoteAddress ?? '')) return null
  return 'the metrics answer only clients on this machine; set SANDYARD_METRICS_KEY and send it as a bearer token'
}

import type { AddressInfo } from 'node:net'
import type { Config } from '../../config.ts'
import type { Transport } from './tls/transport.ts'

const WILDCARDS = ['0.0.0.0', '::']

/**
 * The URL at which workers reach this process. Null when it is unknown. `url` is its URL on this machine. `hasOwnPort`: it shares the
 * port of the API with other processes, and workers reach it by that of `url`.
 */
export function advertisedUrl(
  { advertiseUrl, host }: Pick<Config, 'advertiseUrl' | 'host'>,
  { url, hasOwnPort }: { readonly url: string; readonly hasOwnPort: boolean },
): string | null {
  if (advertiseUrl !== null && hasOwnPort) return withPort(advertiseUrl, new URL(url).port)
  return advertiseUrl ?? (WILDCARDS.includes(host) ? null : url)
}

function withPort(text: string, port: string): string {
  const url = new URL(text)
  url.port = port
  return url.origin
}

/** Says what to set when other server processes can't tell workers the URL of this one. */
export const MISSING_URL_WARNING =
  'other server processes use this database, and this one listens on all addresses. Set SANDYARD_ADVERTISE_URL or ' +
  '--advertise-url to the URL by which workers reach it; otherwise streams fail when the worker syncs with another process'

/** The URL of the API on this machine. */
export function listenUrl(
  { kind }: Pick<Transport, 'kind'>,
  host: string,
  address: Pick<AddressInfo, 'port'> | string | null,
): string {
  const port = typeof address === 'object' && address !== null ? address.port : 0
  const shown = WILDCARDS.includes(host) ? '127.0.0.1' : host
  return `${kind === 'tls' ? 'https' : 'http'}://${shown.includes(':') ? `[${shown}]` : shown}:${String(port)}`
}

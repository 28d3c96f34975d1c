import type { AddressInfo } from 'node:net'
import type { Config } from '../../config.ts'
import type { Transport } from './transport.ts'

const WILDCARDS = ['0.0.0.0', '::']

/** The URL at which workers reach this process. Null when it is unknown. */
export function advertisedUrl(
  { advertiseUrl, host }: Pick<Config, 'advertiseUrl' | 'host'>,
  url: string,
): string | null {
  return advertiseUrl ?? (WILDCARDS.includes(host) ? null : url)
}

/** Says what to set when other server processes can't tell workers the URL of this one. */
export const MISSING_URL_WARNING =
  'other server processes use this database, and this one listens on all addresses. Set SANDYARD_ADVERTISE_URL or ' +
  '--advertise-url to the URL by which workers reach it; otherwise streams fail when the worker syncs with another process'

/** The URL of the API on this machine. */
export function listenUrl(
  { kind }: Pick<Transport, 'kind'>,
  host: string,
  address: AddressInfo | string | null,
): string {
  const port = typeof address === 'object' && address !== null ? address.port : 0
  const shown = WILDCARDS.includes(host) ? '127.0.0.1' : host
  return `${kind === 'tls' ? 'https' : 'http'}://${shown.includes(':') ? `[${shown}]` : shown}:${String(port)}`
}

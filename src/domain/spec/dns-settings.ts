import { isIPv4, isIPv6 } from 'node:net'
import { describeSeen, type Refuse } from '../refusal.ts'

/** A nameserver by its address or name. */
export type Nameserver = { readonly host: string; readonly port: number }

/** How the names of a sandbox are resolved. */
export type DnsSettings = {
  /** In order of preference. Empty: the resolvers of the worker. */
  readonly nameservers: readonly Nameserver[]
  /** How long one nameserver may take for a query. */
  readonly query_timeout_ms: number
  /** Whether answers that give a public name a special address are refused. */
  readonly rebind_protection: boolean
}

/** The `dns` of a request. */
export type DnsInput = {
  readonly nameservers?: readonly string[]
  readonly query_timeout_ms?: number
  readonly rebind_protection?: boolean
}

const DNS_PORT = 53
const DEFAULT_TIMEOUT_MS = 5_000
export const QUERY_TIMEOUT_MAX_MS = 60_000
/** The most nameservers of one sandbox. */
export const NAMESERVERS_MAX = 8

/** Checks the resolution of names in a request. Null if it asks for nothing. */
export function normalizeDns(input: DnsInput | null | undefined, refuse: Refuse): DnsSettings | null {
  if (input === null || input === undefined) return null
  const { nameservers = [], query_timeout_ms = DEFAULT_TIMEOUT_MS, rebind_protection = true } = input
  const found = nameservers.flatMap((text, index) => {
    const nameserver = parseNameserver(text)
    if (nameserver !== null) return [nameserver]
    refuse({
      code: 'invalid_sandbox_config',
      field: `network.dns.nameservers[${String(index)}]`,
      seen: describeSeen(text),
      accepted: 'IP, IP:PORT, HOST or HOST:PORT, such as 9.9.9.9:53; no IPv6, because sandboxes have none',
    })
    return []
  })
  if (query_timeout_ms < 1 || query_timeout_ms > QUERY_TIMEOUT_MAX_MS)
    refuse({
      code: 'invalid_sandbox_config',
      field: 'network.dns.query_timeout_ms',
      seen: String(query_timeout_ms),
      accepted: `1 to ${String(QUERY_TIMEOUT_MAX_MS)}`,
    })
  const isDefault = nameservers.length === 0 && query_timeout_ms === DEFAULT_TIMEOUT_MS && rebind_protection
  return isDefault ? null : { nameservers: found, query_timeout_ms, rebind_protection }
}

/** The nameserver as clients write it. */
export function formatNameserver({ host, port }: Nameserver): string {
  return port === DNS_PORT ? host : `${host}:${String(port)}`
}

const HOST_SHAPE = /^(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*$/

function parseNameserver(text: string): Nameserver | null {
  if (isIPv6(text)) return null
  const [host = '', portText = String(DNS_PORT), ...rest] = text.toLowerCase().replace(/\.$/, '').split(':')
  const port = Number(portText)
  if (rest.length > 0 || !/^\d{1,5}$/.test(portText) || port < 1 || port > 65_535) return null
  const isName = HOST_SHAPE.test(host) && !/^[\d.]+$/.test(host)
  return isIPv4(host) || isName ? { host, port } : null
}

/** Which of a worker's connections go through the operator's proxy: the rules of HTTPS_PROXY and NO_PROXY. */
import { contains, parseCidr } from '../cidr.ts'
import { LOOPBACK_CIDRS } from './network-groups.ts'

export type ProxyRule = {
  /** The URL of the proxy. Null: every connection is direct. */
  readonly proxy: URL | null
  /** The entries of NO_PROXY: hosts, whose subdomains they include, addresses, blocks, or `*`; hosts may have a port. */
  readonly direct: readonly string[]
}

/** Returns the proxy for a URL, or null if the connection is direct. Only HTTPS goes through it, and never to this machine. */
export function proxyFor({ proxy, direct }: ProxyRule, url: URL): URL | null {
  if (proxy === null || url.protocol !== 'https:') return null
  const host = hostOf(url)
  const address = parseCidr(host)
  if (host === 'localhost' || host.endsWith('.localhost')) return null
  if (address !== null && LOOPBACK_CIDRS.some((block) => contains(block, address))) return null
  return direct.some((entry) => isDirect(entry.toLowerCase(), host, url.port || '443')) ? null : proxy
}

function isDirect(entry: string, host: string, port: string): boolean {
  if (entry === '*') return true
  const [block, address] = [parseCidr(entry), parseCidr(host)]
  if (block !== null) return address !== null && contains(block, address)
  const [, name = '', ownPort] = /^\*?\.?(.*?)(?::(\d+))?$/.exec(entry) ?? []
  return name !== '' && (ownPort ?? port) === port && (host === name || host.endsWith(`.${name}`))
}

function hostOf(url: URL): string {
  return url.hostname.toLowerCase().replace(/^\[(.*)\]$/, '$1')
}

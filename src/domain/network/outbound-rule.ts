/** Which addresses a worker may connect to for a tenant, and what the operator opens beyond public addresses. */
import { cidr, contains, formatIpv4, parseCidr, type Cidr } from '../cidr.ts'
import { isRegistryHost } from '../orgs/registry-host.ts'
import { LOOPBACK_CIDRS, PUBLIC_CIDRS, SPECIAL_CIDRS } from './network-groups.ts'

/** What the operator named: a host as tenants write it, with or without a port, or a block of addresses. */
export type NamedDestination =
  | { readonly kind: 'host'; readonly host: string; readonly port: string | null }
  | { readonly kind: 'block'; readonly block: Cidr }

/** Parses `registry.example`, `registry.example:5000`, an address or a block of addresses. Null for any other text. */
export function parseNamedDestination(text: string): NamedDestination | null {
  const block = parseCidr(text)
  if (block !== null) return { kind: 'block', block }
  if (!isRegistryHost(text)) return null
  const [, host = '', port = null] = /^(.*?)(?::(\d+))?$/.exec(text) ?? []
  return { kind: 'host', host, port }
}

export type OutboundRule = {
  readonly named: readonly NamedDestination[]
  /** The addresses of this machine. They are inside even if they are public. */
  readonly own: readonly string[]
}

/** `named`: the operator named the host or the address. `public`: it is a public address of another machine. Null: it is closed. */
type Judgement = 'named' | 'public' | null

/** Judges a connection to `address` for a URL. Plain HTTP is closed unless it stays on this machine. */
export function judgeOutbound(rule: OutboundRule, url: URL, address: string): Judgement {
  const dialled = parseCidr(unmapped(address))
  if (dialled === null) return null
  if (url.protocol !== 'https:' && !(url.protocol === 'http:' && isIn(LOOPBACK_CIDRS, dialled))) return null
  return judgeAddress(rule, url, dialled)
}

/** Judges a connection of a webhook. Plain HTTP is closed unless the operator named where it goes. */
export function judgeWebhook(rule: OutboundRule, url: URL, address: string): Judgement {
  const dialled = parseCidr(unmapped(address))
  if (dialled === null || !/^https?:$/.test(url.protocol)) return null
  const judged = judgeAddress(rule, url, dialled)
  return url.protocol === 'https:' || judged === 'named' ? judged : null
}

function judgeAddress({ named, own }: OutboundRule, url: URL, dialled: Cidr): Judgement {
  if (named.some((entry) => (entry.kind === 'block' ? contains(entry.block, dialled) : isHostOf(entry, url))))
    return 'named'
  const isInside =
    !isIn(PUBLIC_CIDRS, dialled) || isIn(SPECIAL_CIDRS, dialled) || own.some((text) => isIn(blockOf(text), dialled))
  return isInside ? null : 'public'
}

function isIn(blocks: readonly Cidr[], address: Cidr): boolean {
  return blocks.some((block) => contains(block, address))
}

function blockOf(text: string): readonly Cidr[] {
  const block = parseCidr(text)
  return block === null ? [] : [block]
}

const DEFAULT_PORTS: Readonly<Record<string, string>> = { 'http:': '80', 'https:': '443' }

function isHostOf({ host, port }: NamedDestination & { readonly kind: 'host' }, url: URL): boolean {
  return url.hostname === host && (port === null || (url.port || DEFAULT_PORTS[url.protocol]) === port)
}

/** For an IPv6 address that contains an IPv4 address (RFC 4291, 2.5.5.2) the kernel dials the IPv4 address. */
function unmapped(address: string): string {
  const block = parseCidr(address)
  if (block === null || !contains(MAPPED, block)) return address
  return formatIpv4(block.first)
}

const MAPPED = cidr('::ffff:0:0/96')

import type { IncomingHttpHeaders } from 'node:http'
import { LINK_PARAMETER } from '../domain/previews/preview.ts'

/** Headers that are about one connection (RFC 9110, section 7.6.1). A proxy never passes them on. */
const HOP_BY_HOP: ReadonlySet<string> = new Set([
  'connection', 'keep-alive', 'proxy-authenticate', 'proxy-authorization', 'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade',
]) // prettier-ignore
/** What `Connection` can't remove: without it, a body would be read as the next request, or reply, of the connection. */
const FRAMING = 'content-length'
/** Headers that this proxy sets, and that a client could forge. */
const FORWARDED: ReadonlySet<string> = new Set([
  'forwarded', 'x-forwarded-for', 'x-forwarded-host', 'x-forwarded-proto', 'x-forwarded-port', 'x-real-ip',
]) // prettier-ignore

export type ForwardedBy = {
  readonly address: string | undefined
  readonly scheme: 'http' | 'https'
  readonly host: string
  /** Whether the `authorization` header has a key of this service, which the sandbox must not see. */
  readonly hidesAuthorization: boolean
}

/**
 * The headers with which a request goes on to a sandbox, as names and values in turn. Each body is framed by its length, or chunked:
 * Node frames none of a GET, HEAD, DELETE or OPTIONS by itself.
 */
export function requestHeaders(
  raw: readonly string[],
  headers: IncomingHttpHeaders,
  { address, scheme, host, hidesAuthorization }: ForwardedBy,
): string[] {
  const ofConnection = connectionHeaders(headers.connection)
  const kept = pairsOf(raw).flatMap(([name, value]): string[] => {
    const lower = name.toLowerCase()
    if (HOP_BY_HOP.has(lower) || FORWARDED.has(lower) || ofConnection.has(lower)) return []
    if (lower === 'authorization' && hidesAuthorization) return []
    if (lower !== 'cookie') return [name, value]
    const cookies = withoutLink(value)
    return cookies === '' ? [] : [name, cookies]
  })
  const chunked = headers['transfer-encoding'] === undefined ? [] : ['Transfer-Encoding', 'chunked']
  const client = address === undefined ? [] : ['X-Forwarded-For', address]
  return [...kept, ...chunked, ...client, 'X-Forwarded-Host', host, 'X-Forwarded-Proto', scheme]
}

/**
 * The headers of a sandbox's reply, as names and values in turn. A cookie is for its own preview only: the attribute `Domain` would
 * send it to all others.
 */
export function replyHeaders(raw: readonly string[], headers: IncomingHttpHeaders): string[] {
  const ofConnection = connectionHeaders(headers.connection)
  return pairsOf(raw).flatMap(([name, value]): string[] => {
    const lower = name.toLowerCase()
    if (HOP_BY_HOP.has(lower) || ofConnection.has(lower)) return []
    if (lower !== 'set-cookie') return [name, value]
    const parts = value.split(';').filter((part, at) => at === 0 || !/^\s*domain\s*(=|$)/i.test(part))
    return cookieName(parts[0] ?? '') === LINK_PARAMETER ? [] : [name, parts.join(';')]
  })
}

/** The value of the cookie with the secret of a link, or null. */
export function linkCookieOf(header: string | undefined): string | null {
  const found = (header ?? '').split(';').find((part) => cookieName(part) === LINK_PARAMETER)
  return found === undefined ? null : found.slice(found.indexOf('=') + 1).trim()
}

function withoutLink(cookies: string): string {
  return cookies
    .split(';')
    .filter((part) => cookieName(part) !== LINK_PARAMETER)
    .join(';')
    .trim()
}

function cookieName(part: string): string {
  return (part.split('=', 1)[0] ?? '').trim()
}

function connectionHeaders(connection: string | undefined): ReadonlySet<string> {
  const names = new Set((connection ?? '').split(',').map((name) => name.trim().toLowerCase()))
  names.delete(FRAMING)
  return names
}

function pairsOf(raw: readonly string[]): readonly (readonly [string, string])[] {
  const pairs: [string, string][] = []
  for (let at = 0; at + 1 < raw.length; at += 2) pairs.push([raw[at] ?? '', raw[at + 1] ?? ''])
  return pairs
}

import type { IncomingHttpHeaders } from 'node:http'
import { Problem } from '../../domain/problem.ts'
import { describeSeen } from '../../domain/refusal.ts'

/**
 * Throws `forbidden` if a page of another origin may have made the browser send this request. `Sec-Fetch-Site` says so, which browsers
 * send to https and to localhost; else `Origin` does. A change must have one of the two. A read may have neither.
 */
export function requireSameOrigin(headers: IncomingHttpHeaders, { isChange }: { readonly isChange: boolean }): void {
  const { 'sec-fetch-site': site, origin, host } = headers
  if (typeof site === 'string') {
    // `none`: the person opened the address, so no page asked. A form or script never sends it.
    if (site === 'same-origin' || (site === 'none' && !isChange)) return
    throw refusal('sec-fetch-site', site, 'same-origin')
  }
  if (origin === undefined) {
    if (isChange) throw refusal('origin', 'nothing', 'the origin of this server, or sec-fetch-site: same-origin')
    return
  }
  const isOwn = URL.canParse(origin) && new URL(origin).host === host?.toLowerCase()
  if (!isOwn) throw refusal('origin', origin, 'the origin of this server')
}

function refusal(field: string, seen: string, accepted: string): Problem {
  return new Problem('forbidden', {
    message: 'forbidden: a session serves only requests of pages of this server',
    details: { field, seen: describeSeen(seen), accepted },
  })
}

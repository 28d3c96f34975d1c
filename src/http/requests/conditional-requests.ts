import type { IncomingHttpHeaders } from 'node:http'
import type { Operation } from '../../contract/operation.ts'
import { ETAGS_MAX, matchesIfNoneMatch, parseEtags, requireMatch, type IfMatch } from '../../domain/requests/etag.ts'
import { invalidRequest } from '../../domain/refusal.ts'

/** Conditional requests: RFC 9110, 13. What a request asks for is looked at or refused, never passed over. */

const TAGS_RULE = `* or at most ${String(ETAGS_MAX)} entity tags with commas between them`

/**
 * What a request demands of the object that it changes, or null. Throws `invalid_request` for what is no tag, and for a
 * demand to an operation that looks at none.
 */
export function parseIfMatch(operation: Operation, headers: IncomingHttpHeaders): IfMatch | null {
  const header = headers['if-match']
  if (header === undefined) return null
  if (operation.checksIfMatch !== true && !isTagged(operation))
    throw invalidRequest('if-match', header, 'no If-Match: this operation looks at none')
  return parseTagHeader('if-match', header)
}

/** Whether the client has an object already. Throws `precondition_failed` for a read that demands another. */
export function isNotModified(operation: Operation, headers: IncomingHttpHeaders, tag: string): boolean {
  if (operation.method !== 'GET') return false
  const { 'if-match': demand, 'if-none-match': has } = headers
  if (demand !== undefined) requireMatch(parseTagHeader('if-match', demand), tag)
  return has !== undefined && matchesIfNoneMatch(parseTagHeader('if-none-match', has), tag)
}

function isTagged({ method, reply }: Operation): boolean {
  return method === 'GET' && reply.kind === 'json' && reply.hasETag === true
}

function parseTagHeader(field: string, header: string): IfMatch {
  const tags = parseEtags(header)
  if (tags === null) throw invalidRequest(field, header, TAGS_RULE)
  return tags
}

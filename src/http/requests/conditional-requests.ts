import type { IncomingHttpHeaders } from 'node:http'
import type { Operation } from '../../contract/operation.ts'
import { ETAGS_MAX, matchesIfNoneMatch, parseEtags, requireMatch, type IfMatch } from '../../domain/requests/etag.ts'
import { invalidRequest } from '../../domain/refusal.ts'

/** Conditional requests (RFC 9110, section 13). A condition is either checked or refused, never ignored. */

const TAGS_RULE = `* or at most ${String(ETAGS_MAX)} entity tags, separated by commas`

/**
 * Parses the `If-Match` of a request. Null if there is none. Throws `invalid_request` if the header is malformed, or if
 * the operation does not check it.
 */
export function parseIfMatch(operation: Operation, headers: IncomingHttpHeaders): IfMatch | null {
  const header = headers['if-match']
  if (header === undefined) return null
  if (operation.checksIfMatch !== true && !isTagged(operation))
    throw invalidRequest('if-match', header, 'no If-Match, because this operation does not check it')
  return parseTagHeader('if-match', header)
}

/** Whether the reply to a read may be 304. Throws `precondition_failed` if the request's `If-Match` does not match. */
export function isNotModified(operation: Operation, headers: IncomingHttpHeaders, tag: string): boolean {
  if (operation.method !== 'GET') return false
  const { 'if-match': ifMatch, 'if-none-match': ifNoneMatch } = headers
  if (ifMatch !== undefined) requireMatch(parseTagHeader('if-match', ifMatch), tag)
  return ifNoneMatch !== undefined && matchesIfNoneMatch(parseTagHeader('if-none-match', ifNoneMatch), tag)
}

function isTagged({ method, reply }: Operation): boolean {
  return method === 'GET' && reply.kind === 'json' && reply.hasETag === true
}

function parseTagHeader(field: string, header: string): IfMatch {
  const tags = parseEtags(header)
  if (tags === null) throw invalidRequest(field, header, TAGS_RULE)
  return tags
}

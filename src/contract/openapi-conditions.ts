import type { Operation } from './operation.ts'

/** What the document says of conditional requests and of those that are told apart by a key: RFC 9110, 13. */

export const COMMON_HEADERS = { 'x-request-id': { $ref: '#/components/headers/RequestId' } }

export const CONDITION_HEADERS = {
  ETag: { description: 'Names this state of the object.', schema: { type: 'string' } },
  IdempotencyReplayed: {
    description: '`true` on the reply of an earlier request with this Idempotency-Key.',
    schema: { type: 'boolean' },
  },
}

const ETAG_HEADER = { ETag: { $ref: '#/components/headers/ETag' } }
const REPLAYED_HEADER = { 'Idempotency-Replayed': { $ref: '#/components/headers/IdempotencyReplayed' } }

/** The reply to `If-None-Match` with the tag of the object as it is. */
export const NOT_MODIFIED = {
  304: { description: 'The object is still as it was.', headers: { ...COMMON_HEADERS, ...ETAG_HEADER } },
}

/** Whether an operation answers one object with its tag. */
export function hasETag({ reply }: Operation): boolean {
  return reply.kind === 'json' && reply.hasETag === true
}

/** The headers of a reply of an operation that succeeds. */
export function replyHeaders(operation: Operation): object {
  const isKeyed = operation.method === 'POST'
  return { ...COMMON_HEADERS, ...(hasETag(operation) ? ETAG_HEADER : {}), ...(isKeyed ? REPLAYED_HEADER : {}) }
}

/** The headers that a request of an operation may carry beside its own. */
export function conditionParameters(operation: Operation): readonly object[] {
  const { method, checksIfMatch } = operation
  return [
    ...(method === 'POST' ? [IDEMPOTENCY_KEY] : []),
    ...(checksIfMatch === true ? [IF_MATCH] : []),
    ...(method === 'GET' && hasETag(operation) ? [IF_NONE_MATCH] : []),
  ]
}

const IDEMPOTENCY_KEY = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  description:
    "Of 1 to 255 printable ASCII characters, remembered for 24 hours for the organization: the same request with it is not done again but answered as before, refusals included. Replies of 429 and 5xx aren't remembered.",
  schema: { type: 'string', minLength: 1, maxLength: 255, pattern: '^[\\x20-\\x7e]+$' },
}
const IF_MATCH = {
  name: 'If-Match',
  in: 'header',
  required: false,
  description: 'Tags of which the object must have one, or `*`; otherwise nothing is changed.',
  schema: { type: 'string' },
}
const IF_NONE_MATCH = {
  name: 'If-None-Match',
  in: 'header',
  required: false,
  description: 'Tags that the client has; 304 if the object still has one of them.',
  schema: { type: 'string' },
}

import type { Operation } from './operation.ts'

/** The headers of conditional requests (RFC 9110, section 13) and of idempotency keys, for the OpenAPI document. */

export const COMMON_HEADERS = { 'x-request-id': { $ref: '#/components/headers/RequestId' } }

export const CONDITION_HEADERS = {
  ETag: { description: 'Identifies this state of the object.', schema: { type: 'string' } },
  IdempotencyReplayed: {
    description: '`true` if this is the stored reply of an earlier request with the same Idempotency-Key.',
    schema: { type: 'boolean' },
  },
}

const ETAG_HEADER = { ETag: { $ref: '#/components/headers/ETag' } }
const REPLAYED_HEADER = { 'Idempotency-Replayed': { $ref: '#/components/headers/IdempotencyReplayed' } }

/** The 304 reply, for an `If-None-Match` that matches the object. */
export const NOT_MODIFIED = {
  304: { description: 'The object has not changed.', headers: { ...COMMON_HEADERS, ...ETAG_HEADER } },
}

/** Whether an operation replies with one object and the object's ETag. */
export function hasETag({ reply }: Operation): boolean {
  return reply.kind === 'json' && reply.hasETag === true
}

/** The headers of an operation's successful reply. */
export function replyHeaders(operation: Operation): object {
  const isKeyed = operation.method === 'POST'
  return { ...COMMON_HEADERS, ...(hasETag(operation) ? ETAG_HEADER : {}), ...(isKeyed ? REPLAYED_HEADER : {}) }
}

/** The header parameters that follow from an operation's method and ETag. */
export function conditionParameters(operation: Operation): readonly object[] {
  const { method, checksIfMatch } = operation
  return [
    ...(method === 'POST' ? [IDEMPOTENCY_KEY] : []),
    ...(checksIfMatch === true ? [IF_MATCH] : []),
    ...(method === 'GET' && hasETag(operation) ? [IF_NONE_MATCH] : []),
  ]
}

const ETAG_EXAMPLE = '"Vf3xw0mNq8Yk2Zs5Jt7Lbd"'
const IDEMPOTENCY_KEY = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  description:
    'Makes a retry safe. If the organization used the key in the last 24 hours (or the time that the operator has set), the request is not executed again and gets the stored reply, even if that is a refusal. Replies with 429 and 5xx are not stored. 1 to 255 printable ASCII characters.',
  schema: { type: 'string', minLength: 1, maxLength: 255, pattern: '^[\\x20-\\x7e]+$' },
  example: 'create-build-42',
}
const IF_MATCH = {
  name: 'If-Match',
  in: 'header',
  required: false,
  description: 'Changes the object only if it has one of these ETags; `*` matches any. Otherwise the reply is 412.',
  schema: { type: 'string' },
  example: ETAG_EXAMPLE,
}
const IF_NONE_MATCH = {
  name: 'If-None-Match',
  in: 'header',
  required: false,
  description: 'The ETags that the client has. If the object still has one of them, the reply is 304.',
  schema: { type: 'string' },
  example: ETAG_EXAMPLE,
}

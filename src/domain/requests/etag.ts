import { hash } from 'node:crypto'
import { Problem } from '../problem.ts'

/** What a request demands of an object's tag: any of a list, or that there is an object at all. */
export type IfMatch = readonly string[] | '*'

/** 132 bits: no two representations of an object ever share a tag. */
const TAG_CHARS = 22

/** The strong validator of a representation (RFC 9110, 8.8.3), quotes included: equal texts have equal tags, others differ. */
export function etagOf(representation: string): string {
  return `"${hash('sha256', representation, 'base64url').slice(0, TAG_CHARS)}"`
}

/** An entity tag: RFC 9110, 8.8.3. */
const ENTITY_TAG = /^(?:W\/)?"[\x21\x23-\x7e\x80-\xff]*"$/

/** The most tags that a header may list. */
export const ETAGS_MAX = 32

/** The tags of an `If-Match` or `If-None-Match` header, or null for a text that is neither `*` nor a list of tags. */
export function parseEtags(header: string): IfMatch | null {
  const text = header.trim()
  if (text === '*') return '*'
  const tags = text.split(',').map((tag) => tag.trim())
  return tags.length <= ETAGS_MAX && tags.every((tag) => ENTITY_TAG.test(tag)) ? tags : null
}

/** Throws `precondition_failed` unless a demand is met by an object's tag; a weak tag meets none (RFC 9110, 13.1.1). */
export function requireMatch(demand: IfMatch | null, tag: string): void {
  if (demand === null || demand === '*' || demand.includes(tag)) return
  throw new Problem('precondition_failed', {
    message: 'precondition failed: the object is not as If-Match says; read it again',
    details: { field: 'if-match', seen: demand.join(', '), accepted: tag },
  })
}

/** Whether what a client has is what it would get: weak tags count here (RFC 9110, 13.1.2). */
export function matchesIfNoneMatch(has: IfMatch, tag: string): boolean {
  return has === '*' || has.some((one) => one.replace(/^W\//, '') === tag)
}

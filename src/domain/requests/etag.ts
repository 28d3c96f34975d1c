import { createHash, hash } from 'node:crypto'
import { Problem } from '../problem.ts'

/** The value of an `If-Match` header: a list of entity tags, or `*` for any existing object. */
export type IfMatch = readonly string[] | '*'

/** 132 bits, so that different representations never share a tag. */
const TAG_CHARS = 22

/** The strong entity tag of a representation, with its quotes (RFC 9110, 8.8.3). A text and its bytes in UTF-8 have the same tag. */
export function etagOf(representation: string): string {
  return formatEtag(hash('sha256', representation, 'base64url'))
}

/** Makes the entity tag of a representation in pieces. */
export function makeEtagHash(): { readonly update: (piece: Buffer) => void; readonly end: () => string } {
  const hashed = createHash('sha256')
  return { update: (piece) => void hashed.update(piece), end: () => formatEtag(hashed.digest('base64url')) }
}

function formatEtag(digest: string): string {
  return `"${digest.slice(0, TAG_CHARS)}"`
}

/** An entity tag (RFC 9110, 8.8.3). It may contain commas. */
const ENTITY_TAG = String.raw`(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"`
/** A list of tags (RFC 9110, 5.6.1). */
const TAG_LIST = new RegExp(`^${ENTITY_TAG}(?:[ \\t]*,[ \\t]*${ENTITY_TAG})*$`)

/** The maximum number of tags in a header. */
export const ETAGS_MAX = 32

/** Parses an `If-Match` or `If-None-Match` header. Returns null for anything but `*` or a list of tags. */
export function parseEtags(header: string): IfMatch | null {
  const text = header.trim()
  if (text === '*') return '*'
  if (!TAG_LIST.test(text)) return null
  const tags = text.match(new RegExp(ENTITY_TAG, 'g')) ?? []
  return tags.length <= ETAGS_MAX ? tags : null
}

/** Throws `precondition_failed` unless `If-Match` lists the object's tag. Weak tags never match (RFC 9110, 13.1.1). */
export function requireMatch(ifMatch: IfMatch | null, tag: string): void {
  if (ifMatch === null || ifMatch === '*' || ifMatch.includes(tag)) return
  throw new Problem('precondition_failed', {
    message: 'precondition failed: the object has changed since the tag in If-Match; read it again',
    details: { field: 'if-match', seen: ifMatch.join(', '), accepted: tag },
  })
}

/** Whether `If-None-Match` lists the object's tag. Weak tags match here (RFC 9110, 13.1.2). */
export function matchesIfNoneMatch(ifNoneMatch: IfMatch, tag: string): boolean {
  return ifNoneMatch === '*' || ifNoneMatch.some((one) => one.replace(/^W\//, '') === tag)
}

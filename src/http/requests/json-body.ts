import { isUtf8 } from 'node:buffer'
import { refusalProblem } from '../../domain/spec/refusal.ts'
import { findBadStructure } from './json-structure.ts'

/**
 * The value of a JSON body. Throws `invalid_request` for what is not JSON in UTF-8, for nesting deeper than the limit,
 * and for what would be lost or refused later without a word: a key given twice, `__proto__`, NUL, half a character.
 */
export function parseJsonBody(body: Buffer): unknown {
  if (!isUtf8(body)) refuse('body', 'bytes that are not UTF-8', 'JSON in UTF-8')
  const text = body.toString('utf8')
  const bad = findBadStructure(text)
  if (bad !== null) refuse(bad.field, bad.seen, bad.accepted)
  const value = parse(text)
  // Only an escape can bring in what the tables can't hold, so most bodies need no second look.
  if (text.includes('\\u')) refuseUnstorable(value, '')
  return value
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error
    // The parser's own message quotes the text, which may hold a secret; the position is enough.
    const position = /position (\d+)/.exec(error.message)?.[1]
    const seen = position === undefined ? 'text that is not JSON' : `text that is not JSON at position ${position}`
    return refuse('body', seen, 'a JSON document')
  }
}

function refuseUnstorable(value: unknown, path: string): void {
  if (typeof value === 'string') {
    if (value.includes('\0')) refuse(path, 'a NUL character', 'text without NUL')
    if (!value.isWellFormed()) refuse(path, 'half of a surrogate pair', 'Unicode text')
    return
  }
  if (Array.isArray(value)) {
    value.forEach((item: unknown, index) => {
      refuseUnstorable(item, `${path}[${String(index)}]`)
    })
  } else if (typeof value === 'object' && value !== null) {
    for (const [key, item] of Object.entries(value)) {
      refuseUnstorable(key, path === '' ? 'body' : path)
      refuseUnstorable(item, path === '' ? key : `${path}.${key}`)
    }
  }
}

function refuse(field: string, seen: string, accepted: string): never {
  throw refusalProblem({ code: 'invalid_request', field, seen, accepted })
}

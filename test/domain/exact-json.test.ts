import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { parseJsonText } from '../../src/domain/exact-json.ts'

test('a key that has an escape sequence is read as it is, whatever was parsed before', () => {
  parseJsonText('{"team":"a","caf\\\\":"x"}') // a key that ends with a backslash
  assert.deepEqual(parseJsonText('{"team":"b","caf\\u00e9":"x"}'), { team: 'b', café: 'x' })
  const odd = fc.array(fc.constantFrom('\\', '"', '\n', 'é', 'n', 'a', 'escaped key '), { maxLength: 4 })
  const labels = fc.dictionary(odd.map((parts) => parts.join('')), fc.constant('x'), { maxKeys: 3 }) // prettier-ignore
  fc.assert(
    fc.property(labels, fc.boolean(), (value, isAscii) => {
      if ('__proto__' in value && Object.hasOwn(value, '__proto__')) return
      const json = JSON.stringify({ first: 1, list: [value], ...value })
      const text = isAscii ? json.replaceAll('é', '\\u00e9') : json
      assert.deepEqual(parseJsonText(text), { first: 1, list: [{ ...value }], ...value })
    }),
    { numRuns: 20_000 },
  )
})

test('a text is refused exactly if JSON.parse refuses it', () => {
  const token = fc.constantFrom('{', '}', '"a"', '"\\n"', '"\\', ':', ',', '[', ']', '1', ' ')
  const isJson = (parse: () => unknown): boolean => {
    try {
      parse()
      return true
    } catch (error) {
      assert.ok(error instanceof SyntaxError)
      return false
    }
  }
  fc.assert(
    fc.property(fc.array(token, { maxLength: 9 }), (tokens) => {
      const text = tokens.join('')
      assert.equal(isJson(() => parseJsonText(text)), isJson(() => JSON.parse(text)), text) // prettier-ignore
    }),
    { numRuns: 20_000 },
  )
  assert.throws(() => parseJsonText('{"\\q":1}'), SyntaxError)
})

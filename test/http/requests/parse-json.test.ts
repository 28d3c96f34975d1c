import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { DEPTH_MAX, findBadStructure, parseJson, parseLargeJson } from '../../../src/http/requests/parse-json.ts'

test('no JSON text without a double key, __proto__ or deep nesting is refused, however it is spaced and escaped', () => {
  fc.assert(
    fc.property(fc.json({ maxDepth: 6 }), fc.constantFrom(undefined, 1, '\t'), (text, space) => {
      const value: unknown = JSON.parse(text)
      if (text.includes('__proto__')) return
      assert.equal(findBadStructure(JSON.stringify(value, null, space)), null)
    }),
    { numRuns: 500 },
  )
})

test('a key that occurs twice in one object is found wherever it is, and a key that occurs once in each of two objects is accepted', () => {
  fc.assert(
    fc.property(fc.string(), fc.json({ maxDepth: 3 }), (key, between) => {
      if (key === '__proto__' || between.includes('__proto__')) return
      const name = JSON.stringify(key)
      assert.equal(findBadStructure(`[{${name}:${between},"x${key.length}":1,${name} : 2}]`)?.field, key)
      assert.equal(findBadStructure(`[{${name}:${between}},{${name}:${between}}]`), null)
    }),
  )
})

test('nesting up to the limit is accepted and one level more is not', () => {
  const nested = (depth: number): string => '['.repeat(depth) + ']'.repeat(depth)
  assert.equal(findBadStructure(nested(DEPTH_MAX)), null)
  assert.equal(findBadStructure(nested(DEPTH_MAX + 1))?.field, 'body')
})

test('the check of the structure throws for no text, even if it is not JSON', () => {
  fc.assert(fc.property(fc.string(), (text) => void findBadStructure(text)))
  for (const text of ['"', '"\\', '{"', '{"a', '{"\\u12":', ']]]', '{"a\\x":1,"a\\x":1}']) findBadStructure(text)
})

test('a large body is parsed and refused as a small one is', async () => {
  const settle = async (parse: () => unknown) => {
    const [result] = await Promise.allSettled([(async () => parse())()])
    return result
  }
  const bodies = ['{"a":[1,"\\u00e4"]}', '{"a":1,"a":2}', '{"a":', '["\\u0000"]', '["\\ud800"]', '"\\', ''].map(
    (text) => Buffer.from(text),
  )
  // A check that goes on in the next turn still knows the keys, and how deep it is.
  const padding = Array.from({ length: 300_000 }, (_, n) => `[${String(n)}]`).join(',')
  const long = [
    `{"a":[${padding}],"b":1}`,
    `{"a":[${padding}],"a":1}`,
    `{"a":[${padding}${'['.repeat(DEPTH_MAX)}`,
    `{"a":"${padding}","a":1}`,
  ].map((text) => Buffer.from(text))
  for (const body of [...bodies, ...long, Buffer.from('"\xff"', 'latin1')])
    assert.deepEqual(
      await settle(() => parseLargeJson(body)),
      await settle(() => parseJson(body)),
      body.toString().slice(0, 99),
    )
})

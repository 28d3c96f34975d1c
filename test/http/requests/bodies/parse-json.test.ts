import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { ByteList } from '../../../../src/domain/byte-lists.ts'
import { ITEMS_MAX } from '../../../../src/domain/json/json-pieces.ts'
import { DEPTH_MAX, findBadStructure } from '../../../../src/domain/json/json-structure.ts'
import { parseJson, parseLargeJson } from '../../../../src/http/requests/bodies/parse-json.ts'
import { countTurns } from '../../../support/count-turns.ts'

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
  const padding = Array.from({ length: 60_000 }, (_, n) => `[${String(n)}${',1e9'.repeat(5)}]`).join(',')
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

/** Pieces of a few characters, so that a small text has several. */
const inPieces = (text: string, pieceChars: number) => parseLargeJson(Buffer.from(text), pieceChars)

/** The value with a list for each `ByteList`. */
function withLists(value: unknown): unknown {
  if (value instanceof ByteList) return [...value.bytes]
  if (Array.isArray(value)) return value.map(withLists)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withLists(item)]))
}

test('a text is parsed in pieces of any size as it is at once', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.json({ maxDepth: 6 }),
      fc.constantFrom(undefined, 1, '\t'),
      fc.integer({ min: 1, max: 40 }),
      async (text, space, pieceChars) => {
        if (text.includes('__proto__')) return
        const spaced = ` ${JSON.stringify(JSON.parse(text), null, space)}\n`
        if (!spaced.isWellFormed()) return
        const value = await inPieces(spaced, pieceChars).then(withLists, (error: unknown) => error)
        const whole = await Promise.try(() => parseJson(Buffer.from(spaced))).catch((error: unknown) => error)
        assert.deepEqual(value, whole)
      },
    ),
    { numRuns: 500 },
  )
})

test('a string in several parts is parsed and refused as it is at once, wherever its escape sequences are', async () => {
  const escapes = ['\\"', '\\\\', '\\n', '\\u00e4', '\\ud83d\\ude00', '\\u0000', '\\ud800', '\\u12', '\\x']
  const token = fc.constantFrom(...escapes, 'a', '𝄞', '"', '","', '":"', '["', '"]', '{"', '"}', ' ', '\n')
  const parseWhole = (text: string) => Promise.try(() => parseJson(Buffer.from(text)))
  const settle = (parsed: Promise<unknown>) => parsed.then(withLists, () => 'refused')
  await fc.assert(
    fc.asyncProperty(
      fc.array(token, { maxLength: 12 }),
      fc.constantFrom('"', '{"a":"', '[1,"', '["a'),
      fc.constantFrom('"', '"}', '",2]', '"]'),
      fc.integer({ min: 1, max: 9 }),
      async (tokens, before, after, pieceChars) => {
        const text = before + tokens.join('') + after
        if (text.includes('__proto__')) return
        assert.deepEqual(await settle(inPieces(text, pieceChars)), await settle(parseWhole(text)), text)
      },
    ),
    { numRuns: 3_000 },
  )
  for (const [text, message] of [
    ['{"a":[1,"bcd\\u0000"]}', /: a\[1\] is a NUL character/],
    ['["abcdef', /: body is text that is not JSON at position 8;/],
    [`{"${'k'.repeat(65_536)}":1}`, /: body is a very long key; accepted: keys of at most 65536 characters/],
  ] as const)
    await assert.rejects(inPieces(text, 4), message)
})

test('each part of a long string is checked and parsed in a turn of the event loop of its own', async () => {
  const chars = 10_000
  for (const escape of ['\\"', '\\\\', '\\n', '\\u00e4']) {
    const text = `{"a":"${escape.repeat(chars / escape.length)}"}`
    const turns = await countTurns(async () => assert.deepEqual(await inPieces(text, 1_000), JSON.parse(text)))
    assert.ok(turns >= chars / 1_000, `${escape}: ${String(turns)}`)
  }
})

test('what is not JSON is refused in pieces of any size', async () => {
  const isJson = (text: string): boolean => {
    try {
      parseJson(Buffer.from(text))
      return true
    } catch {
      return false
    }
  }
  const token = fc.constantFrom(
    '[',
    ']',
    '{',
    '}',
    ',',
    ':',
    '"a"',
    '"b"',
    '1',
    'null',
    ' ',
    '"',
    '\\',
    '[1,2]',
    '{"c":1}',
  )
  await fc.assert(
    fc.asyncProperty(fc.array(token, { maxLength: 20 }), fc.integer({ min: 1, max: 9 }), async (tokens, pieceChars) => {
      const text = tokens.join('')
      const isParsed = await inPieces(text, pieceChars).then(
        () => true,
        () => false,
      )
      assert.equal(isParsed, isJson(text), text)
    }),
    { numRuns: 5_000 },
  )
  for (const text of [
    '[1,2,]',
    '[,1]',
    '[1,,2]',
    '{"a":1,}',
    '[[1,2],]',
    '[[1,2] [3]]',
    '[[1,2],3]]',
    '[[1,2],3][4,5]',
    '{"a":[1,2]]',
    '[1,2}',
  ])
    await assert.rejects(inPieces(text, 1), /not JSON/, text)
})

test('a text that PostgreSQL cannot store is refused with its path, whichever piece has it', async () => {
  for (const [text, field] of [
    ['{"a":[[1,2,{"b":"\\u0000"}],3]}', 'a[0][2].b'],
    ['[1,2,3,"\\ud800"]', '[3]'],
    ['{"a":{"b":[1,2]},"c":{"\\u0000":1}}', 'c'],
    ['{"\\u0000":1}', 'body'],
  ] as const)
    for (const pieceChars of [1, 4, 1_000])
      await assert.rejects(inPieces(text, pieceChars), ({ message }) =>
        message.startsWith(`invalid request: ${field} is`),
      )
})

test('a list in several pieces is kept as bytes if it has nothing else, and may not be long if it has', async () => {
  const numbers = Array.from({ length: 500 }, (_, n) => n % 256)
  const parsed = await inPieces(
    JSON.stringify({ a: [{ b: numbers }], c: [...numbers, 256], d: [...numbers, [1]], e: [7] }),
    100,
  )
  assert.deepEqual(parsed, {
    a: [{ b: new ByteList(Buffer.from(numbers)) }],
    c: [...numbers, 256],
    d: [...numbers, [1]],
    e: [7],
  })
  for (const text of ['[1, 22,\n 255 ,0]', '[0,1,2,3,4,1.0]', '[1,-0,2,1e1]', '[7,8,"9"]'])
    for (const pieceChars of [1, 3, 6]) assert.deepEqual(withLists(await inPieces(text, pieceChars)), JSON.parse(text))
  for (const text of ['[1,02,3]', '[1,2 3,4]', '[1,2,,3]', '[1,2,3,]', '[,1,2]', '[1,2,-,3]', '[1,2,3'])
    for (const pieceChars of [1, 3, 6]) await assert.rejects(inPieces(text, pieceChars), /not JSON/, text)
  const long = (last: number) => JSON.stringify({ a: [...Array.from({ length: ITEMS_MAX }, () => 1), last] })
  assert.deepEqual(withLists(await inPieces(long(255), 1_000)), JSON.parse(long(255)))
  await assert.rejects(
    inPieces(long(256), 1_000),
    /: a is a list of more than 65536 items; accepted: at most 65536, or bytes$/,
  )
})

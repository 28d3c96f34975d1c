import assert from 'node:assert/strict'
import { test } from 'node:test'
import * as fc from 'fast-check'
import type { RunSecret } from '../../../../src/domain/spec/secrets.ts'
import { makeChunkedDecoder } from '../../../../src/worker/egress/intercept/chunked-body.ts'
import { makeSearch, makeViolationFinder } from '../../../../src/worker/egress/placeholders/find-placeholders.ts'
import { prepareSecrets, type HostSecrets } from '../../../../src/worker/egress/placeholders/host-secrets.ts'
import { makeReplacement, makeReplacer } from '../../../../src/worker/egress/placeholders/replace-placeholders.ts'
import { testSecret } from '../../../support/intercept.ts'
import { costOfFourfold } from '../../../support/processor-time.ts'

/** Few letters, so that placeholders overlap, contain each other and are split. */
const word = (max: number): fc.Arbitrary<string> =>
  fc.array(fc.constantFrom('a', 'b', '$'), { minLength: 1, maxLength: max }).map((letters) => letters.join(''))
const placeholders = fc.uniqueArray(word(5), { minLength: 1, maxLength: 6 })

const secretsFor = (words: readonly string[]): readonly RunSecret[] =>
  words.map((placeholder, nth) => testSecret({ placeholder, value: String(nth), env_var: `K${String(nth)}` }))
const replacementFor = (secrets: readonly RunSecret[]) => makeReplacement(secrets, prepareSecrets(secrets).index)

/** Replaces from left to right, at each place the longest. */
function replaceSlowly(text: string, secrets: readonly RunSecret[]): string {
  const longestFirst = secrets.toSorted((one, other) => other.placeholder.length - one.placeholder.length)
  for (let at = 0, replaced = ''; ;) {
    if (at === text.length) return replaced
    const secret = longestFirst.find(({ placeholder }) => text.startsWith(placeholder, at))
    replaced += secret?.value ?? text.charAt(at)
    at += secret?.placeholder.length ?? 1
  }
}

/** Cuts a text into pieces, some of which may be empty. */
function cut(text: string, places: readonly number[]): readonly Buffer[] {
  const sorted = [0, ...places.map((place) => place % (text.length + 1)), text.length].toSorted((a, b) => a - b)
  return sorted.slice(1).map((place, nth) => Buffer.from(text.slice(sorted[nth], place), 'latin1'))
}

test('placeholders are replaced from left to right, at each place the longest, however a body is split', () => {
  fc.assert(
    fc.property(placeholders, word(40), fc.array(fc.nat(), { maxLength: 8 }), (words, text, places) => {
      const secrets = secretsFor(words)
      const expected = replaceSlowly(text, secrets)
      assert.equal(makeReplacer(secrets, prepareSecrets(secrets).index)(text), expected)
      const { push, end } = replacementFor(secrets)
      assert.equal(Buffer.concat([...cut(text, places).map(push), end()]).toString(), expected)
    }),
    { numRuns: 2_000 },
  )
})

test('an end of a body is held back only if a placeholder may begin with it', () => {
  const { push } = replacementFor(secretsFor(['abab', 'b$']))
  assert.equal(push(Buffer.from('xabab')).toString(), 'x0')
  assert.equal(push(Buffer.from('xa')).toString(), 'x')
  assert.equal(push(Buffer.from('$b')).toString(), 'a$')
})

test('a forbidden placeholder is found unless it lies in a tolerated one, however a location is split', () => {
  const input = [placeholders, fc.nat(), word(40), fc.array(fc.nat(), { maxLength: 8 })] as const
  fc.assert(
    fc.property(...input, (words, share, text, places) => {
      const prepared = prepareSecrets(secretsFor(words))
      const forbidden = prepared.secrets.slice(share % words.length)
      const tolerated = words.slice(0, share % words.length)
      const secrets: HostSecrets = { allowed: [], forbidden, tolerated, index: prepared.index }
      const covered = tolerated.flatMap((word) => placesOf(text, word))
      const isFound = forbidden.some(({ placeholder }) =>
        placesOf(text, placeholder).some(([from, to]) => !covered.some(([start, end]) => start <= from && to <= end)),
      )
      assert.equal(makeViolationFinder(secrets)(text, 'body') !== null, isFound)
      if (tolerated.length > 0 && !isFound) {
        // A tolerated one that isn't whole yet may begin with a forbidden one, which is refused then.
        const whole = makeSearch(secrets, 'body')
        assert.equal(whole(Buffer.from(text)), null)
        for (const letter of 'x'.repeat(70)) assert.equal(whole(Buffer.from(letter)), null)
        return
      }
      const search = makeSearch(secrets, 'body')
      assert.equal(cut(text, places).some((piece) => search(piece) !== null), isFound) // prettier-ignore
    }),
    { numRuns: 2_000 },
  )
})

test('a tolerated placeholder with a forbidden one at its end may leave in each form, wherever a body is split', () => {
  const { secrets, index } = prepareSecrets(secretsFor(['b', 'aaab']))
  const tolerated: HostSecrets = { allowed: [], forbidden: secrets.slice(0, 1), tolerated: ['aaab'], index }
  for (const text of ['aaab', '%61%61%61%62', '\\u0061\\u0061\\u0061\\u0062'])
    for (let behind = 0; behind < 60; behind += 1) {
      const search = makeSearch(tolerated, 'body')
      assert.equal(search(Buffer.from('xxxxxxxx' + text + 'x'.repeat(behind))), null)
      assert.equal(search(Buffer.from('x')), null)
    }
})

function placesOf(text: string, word: string): readonly (readonly [from: number, to: number])[] {
  return Array.from(text, (_, at) => at)
    .filter((at) => text.startsWith(word, at))
    .map((at) => [at, at + word.length])
}

test('the time to search doesn’t grow with the length of placeholders, whatever they have in common', () => {
  const text = Buffer.alloc(65_536, 'a')
  const replacements = new Map(
    [64, 256].map((size) => {
      const words = Array.from({ length: 64 }, (_, n) => `${'a'.repeat(size)}${String(n)}${'a'.repeat(size)}`)
      return [size, replacementFor(secretsFor(words))]
    }),
  )
  const pushAll = (size: number): void => {
    for (let n = 0; n < 10; n += 1) replacements.get(size)?.push(text)
  }
  for (const size of replacements.keys()) pushAll(size) // the first push makes an automaton
  const cost = costOfFourfold(64, pushAll)
  assert.ok(cost < 3, `placeholders of four times the length take ${cost.toFixed(1)} times as long`)
})

test('the time to search doesn’t grow with the number of placeholders that begin with each other', () => {
  const text = Buffer.alloc(65_536, 'a')
  const searches = new Map(
    [64, 256].map((count) => {
      const words = Array.from({ length: count }, (_, n) => 'a'.repeat(n + 1))
      const { secrets, index } = prepareSecrets(secretsFor(words))
      const last = secrets.slice(-1)
      const search = makeSearch(
        { allowed: [], forbidden: secrets.slice(0, -1), tolerated: words.slice(-1), index },
        'body',
      )
      const replacer = makeReplacer(secrets, index)
      const run = (): void => {
        search(text)
        replacer(text.toString(), (secret) => secret === last[0])
      }
      return [count, run]
    }),
  )
  for (const run of searches.values()) run()
  const cost = costOfFourfold(64, (count) => searches.get(count)?.())
  assert.ok(cost < 3, `four times as many placeholders take ${cost.toFixed(1)} times as long`)
})

test('the time to search doesn’t grow with the number of characters that placeholders end with', () => {
  const text = Buffer.alloc(65_536, 0x80)
  const searches = new Map(
    [30, 120].map((count) => {
      const words = Array.from({ length: count }, (_, n) => `q${String.fromCharCode(127 - n)}`)
      const { secrets, index } = prepareSecrets(secretsFor(words))
      return [count, makeSearch({ allowed: [], forbidden: secrets, tolerated: [], index }, 'body')]
    }),
  )
  const run = (count: number): void => {
    for (let n = 0; n < 10; n += 1) searches.get(count)?.(text)
  }
  for (const count of searches.keys()) run(count)
  const cost = costOfFourfold(30, run)
  assert.ok(cost < 2, `four times as many characters take ${cost.toFixed(1)} times as long`)
})

test('a placeholder is found among many that differ in one character', () => {
  const words = Array.from({ length: 100 }, (_, n) => `q${String.fromCharCode(20 + n)}`)
  const secrets = secretsFor(words)
  const text = words.join('-')
  assert.equal(makeReplacer(secrets, prepareSecrets(secrets).index)(text), replaceSlowly(text, secrets))
})

test('a chunked body is decoded to one piece for each part that arrives, however it is split', () => {
  const bodies = fc.array(fc.string({ minLength: 1, unit: 'binary-ascii', maxLength: 20 }), { maxLength: 30 })
  const trailers = fc.constantFrom('', 'x-a: b\r\n', 'x-a: b\r\nx-c: d\r\n')
  fc.assert(
    fc.property(bodies, trailers, fc.array(fc.nat(), { maxLength: 8 }), (chunks, trailer, places) => {
      const encoded = chunks.map((chunk) => `${chunk.length.toString(16)};ext=1\r\n${chunk}\r\n`).join('')
      const decode = makeChunkedDecoder()
      let data = ''
      let last: ReturnType<typeof decode>['last'] = null
      const rest: Buffer[] = []
      for (const piece of cut(`${encoded}0\r\n${trailer}\r\nGET /`, places)) {
        if (last !== null) rest.push(piece)
        else {
          const decoded = decode(piece)
          data += decoded.data.toString('latin1')
          last = decoded.last
        }
      }
      assert.equal(data, chunks.join(''))
      assert.equal(last?.trailers.toString(), trailer)
      assert.equal(Buffer.concat([last?.rest ?? Buffer.alloc(0), ...rest]).toString(), 'GET /')
    }),
    { numRuns: 1_000 },
  )
})

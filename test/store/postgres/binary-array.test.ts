import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import fc from 'fast-check'
import { Client } from 'pg'
import * as arrays from '../../../src/store/postgres/binary-array.ts'
import { acceptLargeValues, type LargeValue } from '../../../src/store/postgres/large-values.ts'
import { columnTypes } from '../../../src/store/postgres/column-types.ts'
import { makeTestDatabase } from '../../support/postgres.ts'

let database: Awaited<ReturnType<typeof makeTestDatabase>>
let client: Client
before(async () => {
  database = await makeTestDatabase()
  client = new Client({ connectionString: database.url, types: columnTypes })
  acceptLargeValues(client.connection)
  await client.connect()
})
after(async () => {
  await client.end()
  await database.close()
})

/** The elements that PostgreSQL reads from an array, one per row. */
async function readBack(type: string, array: Buffer | LargeValue): Promise<readonly unknown[]> {
  const { rows } = await client.query<{ readonly value: unknown }>({
    text: `SELECT value FROM unnest($1::${type}[]) WITH ORDINALITY AS r(value, place) ORDER BY place`,
    values: [array],
  })
  return rows.map(({ value }) => value)
}

const list = <Value>(value: fc.Arbitrary<Value>) => fc.array(fc.option(value), { maxLength: 20 })
/** Texts that PostgreSQL can store, which excludes NUL and lone surrogates. */
const aText = fc.string({ unit: 'grapheme' }).map((text) => text.replaceAll('\0', ''))
const anInstant = fc.date({
  min: new Date('0001-01-01T00:00:00Z'),
  max: new Date('9999-12-31T00:00:00Z'),
  noInvalidDate: true,
})

test('PostgreSQL reads exactly the values that were written to a binary array, including nulls and empty lists', async () => {
  await fc.assert(
    fc.asyncProperty(list(aText), list(fc.uuid()), list(fc.maxSafeInteger()), async (texts, uuids, bigints) => {
      assert.deepEqual(await readBack('text', arrays.texts(texts)), texts)
      assert.deepEqual(await readBack('uuid', arrays.uuids(uuids)), uuids)
      assert.deepEqual(await readBack('bigint', arrays.bigints(bigints)), bigints)
    }),
    { numRuns: 50 },
  )
  await fc.assert(
    fc.asyncProperty(list(fc.integer()), list(fc.boolean()), list(anInstant), async (integers, booleans, instants) => {
      assert.deepEqual(await readBack('integer', arrays.integers(integers)), integers)
      assert.deepEqual(await readBack('boolean', arrays.booleans(booleans)), booleans)
      assert.deepEqual(await readBack('timestamptz', arrays.instants(instants)), instants)
    }),
    { numRuns: 50 },
  )
  const bytes = [Buffer.from([0, 255, 10]), null, Buffer.alloc(0)]
  assert.deepEqual(await readBack('bytea', arrays.byteStrings(bytes)), bytes)
  assert.deepEqual(await readBack('json', arrays.jsons(['{"a":"\\u00e9 \\"é"}', null])), [{ a: 'é "é' }, null])
})

test('a text that is no UUID never reaches the database', () => {
  assert.throws(() => arrays.uuids(['0f3c1a52-0000-7000-8000-00000000000']))
  assert.throws(() => arrays.uuids(['']))
  assert.throws(() => arrays.uuids(['0f3c1a52-0000-7000-8000-00000000000g']))
})

test('large texts arrive whole beside small ones, in statements with and without a name, and with values of other kinds', async () => {
  const large = JSON.stringify('ä'.repeat(3_000_000))
  const bytes = Buffer.from(large)
  const pieces = Array.from({ length: 7 }, (_, n) => bytes.subarray(n * 1_000_000, (n + 1) * 1_000_000))
  const array = arrays.largeJsons(['{"a":1}', pieces, '"ü"', pieces])
  assert.deepEqual(await readBack('json', array), [{ a: 1 }, 'ä'.repeat(3_000_000), 'ü', 'ä'.repeat(3_000_000)])
  for (const text of ['first', 'again']) {
    const { rows } = await client.query({
      name: 'large',
      text: 'SELECT $1::text AS text, octet_length(($2::json[])[2]::text) AS bytes, $3::int AS none, $4::bytea AS plain',
      values: [text, array, null, Buffer.from(text)],
    })
    assert.deepEqual(rows, [{ text, bytes: bytes.length, none: null, plain: Buffer.from(text) }])
  }
  await assert.rejects(
    client.query({ text: 'SELECT $1::json[]', values: [arrays.largeJsons([[Buffer.from('{')]])] }),
    /invalid input syntax/,
  )
  assert.deepEqual(await readBack('json', arrays.largeJsons(['1', '2'])), [1, 2])
})

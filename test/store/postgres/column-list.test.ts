import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Client } from 'pg'
import * as column from '../../../src/store/postgres/column-list.ts'
import { makeEmptyDatabase, type TestDatabase } from '../../support/postgres.ts'

let database: TestDatabase
let client: Client
before(async () => {
  database = await makeEmptyDatabase()
  client = new Client({ connectionString: database.url })
  await client.connect()
})
after(async () => {
  await client.end()
  await database.close()
})

type Row = {
  readonly id: string
  readonly name: string | null
  readonly at: Date
  readonly count: number
  readonly is_on: boolean
}

const ROWS = column.columnList<Row>({
  id: column.uuid((row) => row.id),
  name: column.text((row) => row.name),
  at: column.timestamptz((row) => row.at),
  count: column.integer((row) => row.count),
  is_on: column.boolean((row) => row.is_on),
})

const row = (count: number, name: string | null): Row => ({
  id: `0199a000-0000-7000-8000-00000000000${String(count)}`,
  name,
  at: new Date(1_800_000_000_000 + count),
  count,
  is_on: count % 2 === 0,
})

test('a statement reads the rows by column name and in order, whatever their number and the number of the first parameter', async () => {
  for (const rows of [[], [row(1, null)], [row(1, 'a'), row(2, null), row(3, 'ü')]])
    for (const hidesCount of [false, true]) {
      const text = `SELECT ${ROWS.names} FROM ${ROWS.unnest({ alias: 'r', first: 2, hidesCount })} WHERE r.count < $1::integer`
      const { rows: found } = await client.query<Row>(text, [100, ...ROWS.valuesOf(rows)])
      assert.deepEqual(found, rows)
    }
  assert.equal(ROWS.count, 5)
})

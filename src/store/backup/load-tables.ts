/** Writes the rows that `dump-tables.ts` read into an empty database of the same schema. */
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { Client } from 'pg'
import { from as copyFrom } from 'pg-copy-streams'
import { FORMAT_SETTINGS, tableWithColumns, type Table } from './dump-tables.ts'

/** A table, its rows, and how many there must be. */
export type TableToLoad = Table & { readonly rows: number; readonly read: () => Readable }

/**
 * Replaces the rows of all these tables, in one transaction. Needs the superuser: neither triggers nor foreign keys nor
 * row-level security apply meanwhile. Rejects if a table has another number of rows afterwards.
 */
export async function loadTables(adminUrl: string, tables: readonly TableToLoad[]): Promise<void> {
  const client = new Client({ connectionString: adminUrl, application_name: 'sandyard restore' })
  client.on('error', () => undefined) // the statement that runs rejects with it
  try {
    await client.connect()
    await client.query(FORMAT_SETTINGS)
    await client.query(`BEGIN; SET LOCAL session_replication_role = replica`)
    for (const { name } of tables) await client.query(`DELETE FROM "${name}"`) // migrations insert rows, for example plans
    for (const table of tables) {
      await pipeline(table.read(), client.query(copyFrom(`COPY ${tableWithColumns(table)} FROM STDIN`)))
      const { rows } = await client.query<{ count: string }>(`SELECT count(*) AS count FROM "${table.name}"`)
      if (Number(rows[0]?.count) !== table.rows)
        throw new Error(
          `the table ${table.name} has ${String(rows[0]?.count)} rows after the restore, and had ${String(table.rows)}`,
        )
    }
    await client.query('COMMIT')
    await client.query('ANALYZE')
  } finally {
    await client.end()
  }
}

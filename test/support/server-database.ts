import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Client, QueryResultRow } from 'pg'
import type { RealServer } from './server.ts'
import { onServer } from './postgres.ts'

/** Queries the embedded PostgreSQL of a running server as its superuser, whom row-level security doesn’t bind. */
export async function readRows<Row extends QueryResultRow>(server: RealServer, text: string): Promise<readonly Row[]> {
  const { rows } = await onServer(superuserUrl(server), (client: Client) => client.query<Row>(text))
  return rows
}

/** Reads every row of every table as text. */
export async function dumpTables(server: RealServer): Promise<string> {
  const tables = await readRows<{ name: string }>(
    server,
    `SELECT quote_ident(tablename) AS name FROM pg_tables WHERE schemaname = 'public'`,
  )
  const dumps = await Promise.all(
    tables.map(async ({ name }) => {
      const rows = await readRows<{ row: string }>(server, `SELECT t::text AS row FROM ${name} t`)
      return [name, ...rows.map(({ row }) => row)].join('\n')
    }),
  )
  return dumps.join('\n')
}

/** The connection settings of the superuser of the embedded PostgreSQL. */
export function superuserUrl({ dataDir }: Pick<RealServer, 'dataDir'>): string {
  const url = new URL(readFileSync(join(dataDir, 'database.url'), 'utf8'))
  const passwords: { readonly admin: string } = JSON.parse(
    readFileSync(join(dataDir, 'database/postgres-passwords.json'), 'utf8'),
  )
  url.username = 'postgres'
  url.password = passwords.admin
  return url.toString()
}

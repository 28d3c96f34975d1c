/** Reads all rows of a database in one snapshot, in PostgreSQL's text format, which every later release reads. */
import type { Readable } from 'node:stream'
import { Client } from 'pg'
import { to as copyTo } from 'pg-copy-streams'

/** A migration that a database has. */
export type AppliedMigration = { readonly id: number; readonly name: string; readonly sha256: string }

/** A table, and its columns in the order of their values in each row. */
export type Table = { readonly name: string; readonly columns: readonly string[] }

/** One state of a database, which doesn't change while it is read. */
export type DatabaseSnapshot = {
  /** When the snapshot was taken, by the clock of the database. */
  readonly takenAt: Date
  readonly migrations: readonly AppliedMigration[]
  readonly tables: readonly Table[]
  /** Reads the rows of a table, and after the stream has ended their number. Read one table at a time. */
  read(table: Table): { readonly rows: Readable; count(): number }
} & AsyncDisposable

/**
 * Tables that describe processes, open connections and sessions, which no restored installation has: a session that was ended since
 * must stay ended. `sandyard_migrations` is left out because a restore applies the migrations again.
 */
const LEFT_OUT = ['leads', 'member_sessions', 'replicas', 'sandyard_migrations', 'sign_in_links', 'stream_tickets']

const CONNECT_TIMEOUT_MS = 10_000

/** Settings on which the text format of values depends. */
export const FORMAT_SETTINGS = `SET client_encoding = 'UTF8'; SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET timezone = 'UTC';
  SET extra_float_digits = 1; SET bytea_output = 'hex'; SET search_path = public; SET statement_timeout = 0`

/** Opens a snapshot for the role that owns the tables. Nothing waits for it, except migrations. */
export async function openSnapshot(ownerUrl: string): Promise<DatabaseSnapshot> {
  const client = new Client({
    connectionString: ownerUrl,
    application_name: 'sandyard backup',
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
  })
  client.on('error', () => undefined) // the statement that runs rejects with it
  try {
    await client.connect()
    await client.query(FORMAT_SETTINGS)
    await client.query(`SELECT set_config('sandyard.org', '*', false)`) // row-level security binds the owner too
    await client.query('BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY')
    const times = await client.query<{ now: Date }>('SELECT clock_timestamp() AS now')
    const migrations = await client.query<AppliedMigration>(
      'SELECT id, name, sha256 FROM sandyard_migrations ORDER BY id',
    )
    const tables = await client.query<Table>(LIST_TABLES, [LEFT_OUT])
    return {
      takenAt: times.rows[0]?.now ?? new Date(0),
      migrations: migrations.rows,
      tables: tables.rows,
      read(table) {
        const rows = client.query(copyTo(`COPY ${tableWithColumns(table)} TO STDOUT`))
        return { rows, count: () => rows.rowCount }
      },
      [Symbol.asyncDispose]: () => client.end(),
    }
  } catch (error) {
    await client.end()
    throw error
  }
}

/** Formats a table with its columns, as COPY takes them. */
export function tableWithColumns({ name, columns }: Table): string {
  return `${quote(name)} (${columns.map(quote).join(', ')})`
}

function quote(name: string): string {
  return `"${name.replaceAll('"', '""')}"`
}

/**
 * Generated columns are left out, because the database computes them again. So are the transactions of events: each PostgreSQL counts its
 * own.
 */
const LIST_TABLES = `
  SELECT c.relname AS name, array_agg(a.attname::text ORDER BY a.attnum) AS columns
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
  WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attgenerated = '' AND NOT (c.relname = 'events' AND a.attname = 'xact') AND c.relname <> ALL ($1)
  GROUP BY c.relname ORDER BY c.relname`

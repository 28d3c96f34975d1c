import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Client } from 'pg'
import type { Log } from '../lib/log.ts'
import { UnsuitableDatabase } from './database-errors.ts'
import { queryableOn } from './session.ts'
import { refuseUnsuitable } from './suitability.ts'

/** What `migrate` did: the names of the migrations that this call applied, and the number of the newest there is. */
export type MigrateResult = { readonly applied: readonly string[]; readonly version: number }

/** One file of `migrations/`. */
export type Migration = { readonly id: number; readonly name: string; readonly sha256: string; readonly sql: string }

/** How long a migration waits for a table that others use, before it gives up and blocks nobody behind it. */
const LOCK_TIMEOUT_MS = 30_000

/** How long a connection may take. */
const CONNECT_TIMEOUT_MS = 10_000

/**
 * Brings the schema up to the newest file of `dir`, each file in one transaction. Any number of starters may call it at
 * once: each file runs once. Rejects with `UnsuitableDatabase`, before it changes anything, when the role isn't bound by
 * row-level security, when an applied file was changed, or when the schema is newer than this program.
 */
export async function migrate(connectionString: string, dir: string, log: Log): Promise<MigrateResult> {
  const migrations = await readMigrations(dir)
  const client = new Client({
    connectionString,
    application_name: 'sandyard migrate',
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
  })
  client.on('error', (error) => {
    log.warn({ error }, 'the connection that migrates was lost')
  })
  const applied: string[] = []
  try {
    await client.connect()
    await refuseUnsuitable(queryableOn(client))
    await makeTable(client)
    const known = await readApplied(client, migrations)
    for (const migration of migrations) {
      if (known.has(migration.id) || !(await apply(client, migration))) continue
      applied.push(migration.name)
      log.info({ migration: migration.name }, 'migrated')
    }
    await readApplied(client, migrations) // another starter, of another release, may have been faster
  } finally {
    await client.end()
  }
  return { applied, version: migrations.length }
}

/** Reads the files `NNNN_name.sql`, in order. Rejects when one is named otherwise, or when a number is missing or twice. */
export async function readMigrations(dir: string): Promise<readonly Migration[]> {
  const files = (await readdir(dir)).filter((file) => file.endsWith('.sql')).sort()
  return Promise.all(
    files.map(async (file, index) => {
      const id = Number(FILE_NAME.exec(file)?.[1])
      if (id !== index + 1) {
        throw new Error(`${join(dir, file)}: migrations are named NNNN_name.sql and counted from 0001 without gaps`)
      }
      const sql = await readFile(join(dir, file), 'utf8')
      return { id, name: file.slice(0, -'.sql'.length), sha256: createHash('sha256').update(sql).digest('hex'), sql }
    }),
  )
}

const FILE_NAME = /^([0-9]{4})_[a-z0-9_]+\.sql$/

async function makeTable(client: Client): Promise<void> {
  await inTransaction(client, async () => {
    // "if not exists" isn't safe against itself: two at once break the catalog's unique index
    await client.query(`select pg_advisory_xact_lock(hashtextextended('sandyard migrate', 0))`)
    await client.query(`
      create table if not exists sandyard_migrations (
        id int4 constraint sandyard_migrations_pkey primary key,
        name text not null,
        sha256 text not null,
        applied_at timestamptz not null default now()
      )`)
  })
}

async function readApplied(client: Client, migrations: readonly Migration[]): Promise<ReadonlySet<number>> {
  const { rows } = await client.query<{ id: number; name: string; sha256: string }>(
    'select id, name, sha256 from sandyard_migrations order by id',
  )
  for (const row of rows) {
    const migration = migrations[row.id - 1]
    if (migration === undefined) {
      throw new UnsuitableDatabase(
        `the database's schema is newer than this program: it has the migration ${row.name}, this program knows ` +
          `${String(migrations.length)}. Install the release that made it, or a later one; schemas don't go back.`,
      )
    }
    if (migration.name !== row.name || migration.sha256 !== row.sha256) {
      throw new UnsuitableDatabase(
        `the migration ${migration.name} is not the one that was applied to this database (${row.name}): an applied ` +
          'migration must stay as it was. Restore the file, and put the change into a new one.',
      )
    }
  }
  return new Set(rows.map((row) => row.id))
}

/** Resolves to false when another starter applied it. */
async function apply(client: Client, migration: Migration): Promise<boolean> {
  try {
    return await inTransaction(client, async () => {
      // The row comes first: a second starter waits here until the first commits, and then finds it.
      const { rowCount } = await client.query(
        'insert into sandyard_migrations (id, name, sha256) values ($1, $2, $3) on conflict (id) do nothing',
        [migration.id, migration.name, migration.sha256],
      )
      if (rowCount === 0) return false
      // Row-level security binds the tables' owner too, so that a migration of data must ask to see all rows.
      await client.query(
        `select set_config('sandyard.org', '*', true), set_config('lock_timeout', $1, true), set_config('statement_timeout', '0', true)`,
        [String(LOCK_TIMEOUT_MS)],
      )
      await client.query(migration.sql)
      return true
    })
  } catch (cause) {
    throw new Error(`the migration ${migration.name} failed and was rolled back`, { cause })
  }
}

/** A failure leaves the transaction open: `migrate` then closes the connection, and with it the server rolls back. */
async function inTransaction<T>(client: Client, fn: () => Promise<T>): Promise<T> {
  await client.query('begin')
  const result = await fn()
  await client.query('commit')
  return result
}

import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Client, DatabaseError } from 'pg'
import type { Log } from '../../lib/log.ts'
import { UnsuitableDatabase } from './database-errors.ts'
import { queryableOn, type Queryable } from './session.ts'
import { checkServerSuitable } from './server-suitability.ts'

/**
 * The result of `migrate`: the names of the migrations that this call applied, and the number of the newest migration.
 */
export type MigrateResult = { readonly applied: readonly string[]; readonly version: number }

/** One file of the folder `migrations/`. */
export type Migration = {
  readonly id: number
  readonly name: string
  readonly sha256: string
  /**
   * Why processes of an older release can't use the schema once it has this migration; from the file's first line.
   * Null: they can.
   */
  readonly breaking: string | null
  readonly sql: string
}

/**
 * How long a migration waits for a table that is in use. Then it gives up, because other statements queue behind it.
 */
const LOCK_TIMEOUT_MS = 30_000

/** How long connecting may take. */
const CONNECT_TIMEOUT_MS = 10_000

/** How long a breaking migration waits for running processes to end. */
const EXCLUSIVE_TIMEOUT_MS = 5_000

/** The name of the session lock that every process shares while it uses the schema: see `schema-lock.ts`. */
export const SCHEMA_LOCK_NAME = 'sandyard schema'

/**
 * Applies the migrations in `dir` that the schema lacks, up to the number `newest`, each in one transaction. Several processes may call this
 * function at the same time: each file runs once. A file whose first line is `-- breaking: WHY` runs only while no
 * process uses the schema.
 *
 * Rejects with `UnsuitableDatabase` before it changes anything if row-level security doesn't apply to the role, or if
 * an applied file was changed. It also rejects if the schema has a breaking migration that this program doesn't know.
 * It also rejects if a breaking file can't run because other processes are running. Earlier files are applied by then.
 */
export async function migrate(
  connectionString: string,
  dir: string,
  log: Log,
  newest = Number.POSITIVE_INFINITY,
): Promise<MigrateResult> {
  const migrations = (await readMigrations(dir)).filter(({ id }) => id <= newest)
  const client = new Client({
    connectionString,
    application_name: 'sandyard migrate',
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
  })
  client.on('error', (error) => {
    log.warn({ error }, 'the connection of the migration was lost')
  })
  const applied: string[] = []
  try {
    await client.connect()
    await checkServerSuitable(queryableOn(client))
    await createMigrationsTable(client)
    const known = await checkApplied(queryableOn(client), migrations)
    for (const migration of migrations) {
      if (known.has(migration.id)) continue
      if (migration.breaking !== null && !(await lockExclusively(client, migration))) continue
      if (!(await apply(client, migration))) continue
      applied.push(migration.name)
      log.info({ migration: migration.name }, 'migrated')
    }
    // A process of another release may have migrated meanwhile.
    const all = await checkApplied(queryableOn(client), migrations)
    if (all.size > migrations.length)
      log.warn({}, 'the schema comes from a newer release; its additions do not affect this one')
  } finally {
    await client.end()
  }
  return { applied, version: migrations.length }
}

/**
 * Reads the migrations `NNNN_name.sql` in order. Rejects if a file name has another form, or if a number is missing or
 * repeated.
 */
export async function readMigrations(dir: string): Promise<readonly Migration[]> {
  const files = (await readdir(dir)).filter((file) => file.endsWith('.sql')).sort()
  return Promise.all(
    files.map(async (file, index) => {
      const id = Number(FILE_NAME.exec(file)?.[1])
      if (id !== index + 1) {
        throw new Error(`${join(dir, file)}: migrations are named NNNN_name.sql and counted from 0001 without gaps`)
      }
      const sql = await readFile(join(dir, file), 'utf8')
      const sha256 = createHash('sha256').update(sql).digest('hex')
      return { id, name: file.slice(0, -'.sql'.length), sha256, breaking: BREAKING.exec(sql)?.[1] ?? null, sql }
    }),
  )
}

const FILE_NAME = /^([0-9]{4})_[a-z0-9_]+\.sql$/
/** Matches only the first line of the file. */
const BREAKING = /^-- breaking: (\S.*)/

async function createMigrationsTable(client: Client): Promise<void> {
  await inTransaction(client, async () => {
    // "if not exists" isn't safe against concurrent use: two statements at once violate a unique index of the catalog.
    await client.query(`select pg_advisory_xact_lock(hashtextextended('sandyard migrate', 0))`)
    await client.query(`
      create table if not exists sandyard_migrations (
        id int4 constraint sandyard_migrations_pkey primary key,
        name text not null,
        sha256 text not null,
        applied_at timestamptz not null default now(),
        breaking text
      )`)
    // Tables of an early release lack this column. Check for the column first, because ALTER TABLE locks out every
    // reader.
    const { rowCount } = await client.query(
      `select from pg_attribute where attrelid = 'sandyard_migrations'::regclass and attname = 'breaking'`,
    )
    if (rowCount === 0) await client.query('alter table sandyard_migrations add column breaking text')
  })
}

/**
 * The numbers of the migrations that a database has. Rejects with `UnsuitableDatabase` if an applied migration was
 * changed since, or if a breaking migration is not among `migrations`. Other newer migrations are compatible.
 */
export async function checkApplied(q: Queryable, migrations: readonly Migration[]): Promise<ReadonlySet<number>> {
  const { rows } = await q.query<{ id: number; name: string; sha256: string; breaking: string | null }>({
    text: 'select id, name, sha256, breaking from sandyard_migrations order by id',
  })
  for (const row of rows) {
    const migration = migrations[row.id - 1]
    if (migration === undefined) {
      if (row.breaking === null) continue
      throw new UnsuitableDatabase(
        `the database's schema is newer than this program: it has the migration ${row.name} (${row.breaking}), this ` +
          `program knows ${String(migrations.length)}. Install the release that made it, or a later one; schemas can't be downgraded.`,
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

/**
 * Waits until no process uses the schema, and keeps other processes from using it until the connection ends. Resolves
 * to false if another process applied the migration meanwhile.
 */
async function lockExclusively(client: Client, migration: Migration): Promise<boolean> {
  if (await isApplied(client, migration)) return false
  try {
    await client.query(`select set_config('lock_timeout', $1, false)`, [String(EXCLUSIVE_TIMEOUT_MS)])
    await client.query('select pg_advisory_lock(hashtextextended($1, 0))', [SCHEMA_LOCK_NAME])
    return true
  } catch (error) {
    if (!(error instanceof DatabaseError) || error.code !== LOCK_NOT_AVAILABLE) throw error
    if (await isApplied(client, migration)) return false
    throw new UnsuitableDatabase(
      `the migration ${migration.name} must run alone (${String(migration.breaking)}), and other processes use this ` +
        `database${await listReplicas(client)}. Stop them all, then start this release.`,
      { cause: error },
    )
  }
}

/** SQLSTATE of a lock timeout. */
const LOCK_NOT_AVAILABLE = '55P03'

async function isApplied(client: Client, { id }: Migration): Promise<boolean> {
  return (await client.query('select from sandyard_migrations where id = $1', [id])).rowCount === 1
}

/** Describes the registered server processes. Other processes and short commands may also be running. */
async function listReplicas(client: Client): Promise<string> {
  const { rows: tables } = await client.query<{ found: string | null }>(`select to_regclass('replicas')::text as found`)
  if ((tables[0]?.found ?? null) === null) return ''
  const rows = await inTransaction(client, async () => {
    await client.query(`select set_config('sandyard.org', '*', true)`)
    const found = await client.query<{ name: string; version: string }>(
      'select coalesce(url, id::text) as name, version from replicas order by started_at limit 20',
    )
    return found.rows
  })
  return rows.length === 0 ? '' : `: ${rows.map(({ name, version }) => `${name} (release ${version})`).join(', ')}`
}

/** Applies a migration. Resolves to false if another process has applied it. */
async function apply(client: Client, migration: Migration): Promise<boolean> {
  try {
    return await inTransaction(client, async () => {
      // Insert the row first. A second process then waits here until the first commits, and finds the row.
      const { rowCount } = await client.query(
        'insert into sandyard_migrations (id, name, sha256, breaking) values ($1, $2, $3, $4) on conflict (id) do nothing',
        [migration.id, migration.name, migration.sha256, migration.breaking],
      )
      if (rowCount === 0) return false
      // Row-level security applies to the tables' owner too. Therefore a migration that changes rows needs this setting
      // to see all of them.
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

/**
 * Runs `fn` in a transaction. A failure leaves the transaction open; `migrate` then closes the connection, and the
 * server rolls back.
 */
async function inTransaction<T>(client: Client, fn: () => Promise<T>): Promise<T> {
  await client.query('begin')
  const result = await fn()
  await client.query('commit')
  return result
}

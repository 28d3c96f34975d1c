import { Client } from 'pg'
import type { Log } from '../../lib/log.ts'
import { UnsuitableDatabase } from './database-errors.ts'
import { checkApplied, migrate, readMigrations } from './migrate.ts'
import { canMigrate, checkReadsMigrations, checkServerRole, grantServerRights, readRole } from './server-rights.ts'
import { checkServerSuitable } from './server-suitability.ts'
import { queryableOn, type Queryable } from './session.ts'

/** How Sandyard connects to one database. */
export type DatabaseUrls = {
  /** For everything but migrations. */
  readonly server: string
  /** For migrations: the role that owns the tables. Null if only one URL is known. */
  readonly owner: string | null
}

/** The role that serves requests, and whether it owns the tables and could therefore switch row-level security off. */
export type ServerRole = { readonly name: string; readonly isOwner: boolean }

const CONNECT_TIMEOUT_MS = 10_000

/**
 * Makes the schema ready for this program. With both URLs, the owner migrates and grants the server's role its rights. With
 * one URL, its role migrates if it owns the tables. If another role owns them, nothing is changed, and this rejects with
 * `UnsuitableDatabase` if a migration or a right is missing.
 */
export async function prepareSchema(urls: DatabaseUrls, dir: string, log: Log): Promise<ServerRole> {
  if (urls.owner !== null) {
    const name = await withClient(urls.server, readRole)
    await migrate(urls.owner, dir, log)
    await withClient(urls.owner, async (owner) => {
      await owner.query({ text: 'begin' })
      await grantServerRights(owner, name)
      await owner.query({ text: 'commit' })
    })
    await withClient(urls.server, checkServerRole)
    return { name, isOwner: false }
  }
  const role = await readServerRole(urls.server)
  if (role.isOwner) await migrate(urls.server, dir, log)
  else await withClient(urls.server, (q) => checkMigrated(q, dir))
  return role
}

/**
 * Reads which role a URL has, and whether it owns the tables. Changes nothing. Rejects with `UnsuitableDatabase` if row-level
 * security doesn't apply to the role.
 */
export function readServerRole(url: string): Promise<ServerRole> {
  return withClient(url, async (q) => {
    await checkServerSuitable(q)
    return { name: await readRole(q), isOwner: await canMigrate(q) }
  })
}

/** Checks the schema for a role that can't migrate it. */
async function checkMigrated(q: Queryable, dir: string): Promise<void> {
  await checkReadsMigrations(q)
  const migrations = await readMigrations(dir)
  const applied = await checkApplied(q, migrations)
  const missing = migrations.find(({ id }) => !applied.has(id))
  if (missing !== undefined) {
    throw new UnsuitableDatabase(
      `the database lacks the migration ${missing.name}, and the role "${await readRole(q)}" of DATABASE_URL doesn't own the ` +
        'tables: run `sandyard migrate` of this release with DATABASE_OWNER_URL, or set it for this process too.',
    )
  }
  await checkServerRole(q)
}

async function withClient<T>(connectionString: string, use: (q: Queryable) => Promise<T>): Promise<T> {
  const client = new Client({
    connectionString,
    application_name: 'sandyard roles',
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
  })
  client.on('error', () => undefined) // the statement that runs rejects with it
  try {
    await client.connect()
    return await use(queryableOn(client))
  } finally {
    await client.end()
  }
}

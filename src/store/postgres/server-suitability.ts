import { UnsuitableDatabase } from './database-errors.ts'
import type { Queryable } from './session.ts'

/**
 * The oldest supported release (2026-11). PostgreSQL 15 is the first whose views apply the row-level security of their
 * reader.
 */
const OLDEST_VERSION = 15

/**
 * Throws `UnsuitableDatabase` if the server is too old, or if row-level security doesn't apply to this connection's
 * role. Without row-level security, a faulty query of one tenant would show another tenant's rows.
 */
export async function checkServerSuitable(q: Queryable): Promise<void> {
  const { rows } = await q.query<{ role: string; bound: boolean; version: number }>({
    text: `select rolname as role, not (rolsuper or rolbypassrls) as bound,
            current_setting('server_version_num')::int4 / 10000 as version
       from pg_roles where rolname = current_user`,
  })
  const [found] = rows
  if (found === undefined) throw new UnsuitableDatabase('the database does not name the role of this connection')
  if (found.version < OLDEST_VERSION) {
    throw new UnsuitableDatabase(
      `PostgreSQL ${String(found.version)} is too old: version ${String(OLDEST_VERSION)} or later is needed`,
    )
  }
  if (!found.bound) throw new UnsuitableDatabase(describeUnboundRole(found.role))
}

function describeUnboundRole(role: string): string {
  return [
    `row-level security would have no effect: the role "${role}" is a superuser or has BYPASSRLS. Create two roles for Sandyard, an owner and a server:`,
    `  CREATE ROLE sandyard LOGIN PASSWORD '…' NOSUPERUSER NOBYPASSRLS;`,
    `  CREATE ROLE sandyard_server LOGIN PASSWORD '…' NOSUPERUSER NOBYPASSRLS;`,
    `  CREATE DATABASE sandyard OWNER sandyard;`,
    `and set DATABASE_OWNER_URL to postgres://sandyard:…@host:5432/sandyard`,
    `and DATABASE_URL to postgres://sandyard_server:…@host:5432/sandyard`,
  ].join('\n')
}

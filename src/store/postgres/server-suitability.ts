import { UnsuitableDatabase } from './database-errors.ts'
import type { Queryable } from './session.ts'

/** PostgreSQL 15 is the oldest that its makers still care for (2026-11), and the first with views that obey the reader's row-level security. */
const OLDEST_VERSION = 15

/**
 * Refuses, with `UnsuitableDatabase`, a server that is too old and a role that row-level security doesn't bind: one
 * tenant's query with a mistake in it would then show another tenant's rows.
 */
export async function checkServerSuitable(q: Queryable): Promise<void> {
  const { rows } = await q.query<{ role: string; bound: boolean; version: number }>({
    text: `select rolname as role, not (rolsuper or rolbypassrls) as bound,
            current_setting('server_version_num')::int4 / 10000 as version
       from pg_roles where rolname = current_user`,
  })
  const [found] = rows
  if (found === undefined) throw new UnsuitableDatabase('the database does not say which role this program has')
  if (found.version < OLDEST_VERSION) {
    throw new UnsuitableDatabase(
      `PostgreSQL ${String(found.version)} is too old: ${String(OLDEST_VERSION)} or later is needed`,
    )
  }
  if (!found.bound) throw new UnsuitableDatabase(describeUnboundRole(found.role))
}

function describeUnboundRole(role: string): string {
  return [
    `row-level security would be void: the role "${role}" is a superuser or has BYPASSRLS. Make a role for Sandyard alone:`,
    `  CREATE ROLE sandyard LOGIN PASSWORD '…' NOSUPERUSER NOBYPASSRLS;`,
    `  CREATE DATABASE sandyard OWNER sandyard;`,
    `and set DATABASE_URL to postgres://sandyard:…@host:5432/sandyard`,
  ].join('\n')
}

import type { Config } from '../../config.ts'
import { readServerRole, type ServerRole } from '../../store/postgres/prepare-schema.ts'

/** What an operator should know about the role that serves requests. Null if it owns nothing. */
export function describeOwnerServes({ name, isOwner }: ServerRole): string | null {
  if (!isOwner) return null
  return (
    `the role "${name}" serves requests and owns the tables, so it could switch row-level security off: ` +
    'give the server a role of its own (docs/guide/operations.md)'
  )
}

/** Checks for `sandyard doctor` which role serves requests. Rejects if it owns the tables, or can't be used. */
export async function checkServerRole({ databaseUrl }: Pick<Config, 'databaseUrl'>): Promise<string> {
  if (databaseUrl === null) return 'the embedded PostgreSQL; a role that owns nothing serves requests'
  const role = await readServerRole(databaseUrl)
  const warning = describeOwnerServes(role)
  if (warning !== null) throw new Error(warning)
  return `the PostgreSQL of DATABASE_URL; the role "${role.name}", which owns nothing, serves requests`
}

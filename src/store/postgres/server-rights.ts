import { UnsuitableDatabase } from './database-errors.ts'
import type { Queryable } from './session.ts'

/** SQL for the schema of Sandyard's tables: the one in which the connection's search path finds them. */
const SCHEMA = `(SELECT relnamespace FROM pg_class WHERE oid = to_regclass('sandyard_migrations'))`

/**
 * Grants a role exactly the rights that serving needs (`sandyard_server_rights` in the migrations), and revokes all others.
 * `owner` is in a transaction of the tables' owner. Changes nothing that is already right. May be repeated.
 */
export async function grantServerRights(owner: Queryable, role: string): Promise<void> {
  // Two processes that change the rights of a table at once fail with "tuple concurrently updated".
  await owner.query({ text: `SELECT pg_advisory_xact_lock(hashtextextended('sandyard migrate', 0))` })
  for (const text of [REVOKE_FROM_PUBLIC, GRANT_TO_ROLE, GRANT_FUNCTIONS]) {
    const { rows } = await owner.query<{ statement: string }>({ text, values: [role] })
    for (const { statement } of rows) await owner.query({ text: statement })
  }
}

/**
 * What PostgreSQL allows everyone by default, or did in earlier releases. Only the owner of a database or schema can
 * revoke it. Lists nothing that the role $1 can't do.
 */
const REVOKE_FROM_PUBLIC = `
  SELECT format('REVOKE CREATE, TEMPORARY ON DATABASE %I FROM PUBLIC', datname) AS statement FROM pg_database
   WHERE datname = current_database() AND pg_has_role(datdba, 'USAGE') AND has_database_privilege($1, oid, 'CREATE, TEMPORARY')
  UNION ALL
  SELECT format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', nspname) FROM pg_namespace
   WHERE oid = ${SCHEMA} AND pg_has_role(nspowner, 'USAGE') AND has_schema_privilege($1, oid, 'CREATE')
  UNION ALL
  SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', p.oid::regprocedure) FROM pg_proc p
   WHERE pronamespace = ${SCHEMA} AND prosecdef AND pg_has_role(proowner, 'USAGE')
     AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0)`

/** The statements that let the role $1 call the functions that run as their owner. */
const GRANT_FUNCTIONS = `
  SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::regprocedure, $1::text) AS statement FROM pg_proc p
   WHERE pronamespace = ${SCHEMA} AND prosecdef AND pg_has_role(proowner, 'USAGE')
     AND NOT has_function_privilege($1, p.oid, 'EXECUTE') ORDER BY 1`

/** The statements that give the role $1 its rights on each table and view of the owner, where they differ. */
const GRANT_TO_ROLE = `
  WITH relations AS (
    SELECT c.relname,
           ARRAY(SELECT unnest(w.rights) ORDER BY 1) AS rights,
           ARRAY(SELECT a.privilege_type FROM aclexplode(c.relacl) a
                  WHERE a.grantee = (SELECT oid FROM pg_roles WHERE rolname = $1) ORDER BY 1) AS held
      FROM pg_class c LEFT JOIN sandyard_server_rights() w ON w.relation = c.relname
     WHERE c.relnamespace = ${SCHEMA} AND c.relkind IN ('r', 'p', 'v', 'm', 'S') AND pg_has_role(c.relowner, 'USAGE'))
  SELECT s.statement FROM relations, LATERAL (
    VALUES (1, format('REVOKE ALL ON %I FROM %I', relname, $1::text)),
           (2, format('GRANT %s ON %I TO %I', array_to_string(rights, ', '), relname, $1::text))) s (step, statement)
   WHERE rights <> held AND (step = 1 OR cardinality(rights) > 0)
   ORDER BY relname, step`

/** Reads the name of a connection's role. */
export async function readRole(q: Queryable): Promise<string> {
  const { rows } = await q.query<{ name: string }>({ text: 'SELECT current_user AS name' })
  return rows[0]?.name ?? ''
}

/**
 * Whether a connection's role can apply migrations: it owns Sandyard's tables, or there are none yet and it can create
 * them. If not, another role must own the tables.
 */
export async function canMigrate(q: Queryable): Promise<boolean> {
  const { rows } = await q.query<{ can: boolean }>({
    text: `SELECT coalesce((SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('sandyard_migrations')),
                           has_schema_privilege(current_schema(), 'CREATE')) AS can`,
  })
  return rows[0]?.can === true
}

/**
 * Rejects with `UnsuitableDatabase` if a connection's role could switch row-level security off, or if it lacks rights that
 * serving needs.
 */
export async function checkServerRole(q: Queryable): Promise<void> {
  const { rows: powers } = await q.query<{ power: string }>({ text: POWERS })
  if (powers.length > 0) {
    throw new UnsuitableDatabase(
      `the role "${await readRole(q)}" of DATABASE_URL must not be able to switch row-level security off, but it ` +
        `${powers.map(({ power }) => power).join(', and it ')}. ${HOW_TO_CREATE}`,
    )
  }
  const { rows: lacks } = await q.query<{ lack: string }>({ text: LACKS })
  if (lacks.length > 0) throw lacksRights(await readRole(q), lacks.map(({ lack }) => lack)) // prettier-ignore
}

/** Rejects with `UnsuitableDatabase` if a connection's role can't read which migrations the schema has. */
export async function checkReadsMigrations(q: Queryable): Promise<void> {
  const { rows } = await q.query<{ can: boolean }>({
    text: `SELECT has_table_privilege(to_regclass('sandyard_migrations'), 'SELECT') AS can`,
  })
  if (rows[0]?.can !== true) throw lacksRights(await readRole(q), ['sandyard_migrations'])
}

function lacksRights(role: string, relations: readonly string[]): UnsuitableDatabase {
  return new UnsuitableDatabase(
    `the role "${role}" of DATABASE_URL lacks rights on ${relations.join(', ')}. Set DATABASE_OWNER_URL to a URL of the ` +
      'same database for the role that owns the tables, and run `sandyard migrate`, which grants them.',
  )
}

const HOW_TO_CREATE =
  `Create a role for the server, as in CREATE ROLE sandyard_server LOGIN PASSWORD '…', and set DATABASE_URL to its URL ` +
  'and DATABASE_OWNER_URL to the URL of the role that owns the tables.'

/** Each row completes a sentence about the role that begins with "it". */
const POWERS = `
  SELECT format('owns the tables, or is a member of the role %I, which owns them', relowner::regrole::text) AS power
    FROM pg_class WHERE relnamespace = ${SCHEMA} AND pg_has_role(relowner, 'MEMBER') GROUP BY relowner
  UNION ALL
  SELECT format('can create objects in the schema %I (REVOKE CREATE ON SCHEMA %1$I FROM PUBLIC)', nspname)
    FROM pg_namespace WHERE oid = ${SCHEMA} AND has_schema_privilege(oid, 'CREATE')
  UNION ALL
  SELECT format('has the rights of %I, who is a superuser or has BYPASSRLS, CREATEROLE or REPLICATION', rolname)
    FROM pg_roles WHERE (rolsuper OR rolbypassrls OR rolcreaterole OR rolreplication) AND pg_has_role(oid, 'MEMBER')
  UNION ALL
  SELECT format('is a member of %I, who reaches files and programs of the database server', rolname)
    FROM pg_roles WHERE pg_has_role(oid, 'MEMBER')
     AND rolname IN ('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program')`

/** Names the tables, views and functions on which the role lacks a right. */
const LACKS = `
  SELECT w.relation AS lack FROM sandyard_server_rights() w
   WHERE NOT coalesce((SELECT bool_and(has_table_privilege(to_regclass(quote_ident(w.relation)), r)) FROM unnest(w.rights) r), false)
  UNION ALL
  SELECT p.oid::regprocedure::text FROM pg_proc p
   WHERE pronamespace = ${SCHEMA} AND prosecdef AND NOT has_function_privilege(p.oid, 'EXECUTE')
   ORDER BY 1`

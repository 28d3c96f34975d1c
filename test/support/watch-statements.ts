import type { Database, Queryable, Statement } from '../../src/store/postgres/database.ts'

/** The database, with `onResult` called for each statement in the name of an organization or in a transaction, and for its rows. */
export function watchStatements(
  db: Database,
  onResult: (statement: Statement, rows: readonly object[]) => void,
): Database {
  const watch = <Q extends Queryable>(q: Q): Q => ({
    ...q,
    async query(statement: Statement) {
      const result = await q.query(statement)
      onResult(statement, result.rows)
      return result
    },
  })
  return {
    ...db,
    asOrg: (org, work) => db.asOrg(org, (q) => work(watch(q))),
    transaction: (scope, work) => db.transaction(scope, (tx) => work(watch(tx))),
  }
}

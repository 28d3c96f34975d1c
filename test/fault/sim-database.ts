/**
 * A real PostgreSQL under one schedule. The whole schedule is one transaction of one connection, and each transaction of
 * the code under test is a savepoint in it: what a schedule wrote is gone with one statement, and nothing waits for a
 * disk. Two transactions never overlap here, which is what other tests are about (`test/control/*-races.test.ts`).
 */
import { Socket } from 'node:net'
import { Client } from 'pg'
import type { OrgId } from '../../src/domain/ids.ts'
import { columnTypes } from '../../src/store/postgres/column-types.ts'
import type { QueryResult, Database, Queryable, Statement } from '../../src/store/postgres/database.ts'
import { DatabaseUnavailable } from '../../src/store/postgres/database-errors.ts'
import type { Ending, Gates, Life } from './gates.ts'

type Row = Record<string, unknown>

/** A connection with one schedule's data. */
export type Store = {
  /** Begins a schedule: all that was written since is undone by `rollback`. */
  begin(): Promise<void>
  rollback(): Promise<void>
  /** Does `work` as a transaction that sees one organization, or all: undone when it rejects. */
  atomically<T>(scope: OrgId | 'system', work: (q: Queryable) => Promise<T>): Promise<T>
  /** Runs one statement. One that fails spoils the schedule: none should, alone. */
  once<R extends Row>(scope: OrgId | 'system', statement: Statement): Promise<QueryResult<R>>
  /** Keeps what was written since `begin`: every later schedule begins with it. */
  keep(): Promise<void>
  /** How many messages went to the server so far. */
  readonly roundTrips: number
  close(): Promise<void>
}

/** Opens a store on a database that has the schema and whatever every schedule begins with. */
export async function openStore(connectionString: string): Promise<Store> {
  const socket = new Socket()
  const client = new Client({ connectionString, types: columnTypes, pipeline: true, stream: () => socket })
  await client.connect()
  await client.query('SET synchronous_commit = off')
  let roundTrips = 0
  let scope: string | null = null
  let hasSavepoint = false
  /** What is asked for without waiting goes to the server in one piece: each write to a socket takes 20 to 100 us here. */
  const gather = (): void => {
    socket.cork()
    process.nextTick(() => socket.uncork())
  }
  const command = (text: string): Promise<unknown> => {
    gather()
    return client.query(text)
  }
  const queryable: Queryable = {
    async query<R extends Row = Row>({ name, text, values }: Statement): Promise<QueryResult<R>> {
      roundTrips += 1
      const result = await client.query<R>({
        ...(name === undefined ? {} : { name }),
        text,
        values: [...(values ?? [])],
      })
      return { rows: result.rows, rowCount: result.rowCount ?? 0 }
    },
  }
  return {
    async begin() {
      scope = null
      hasSavepoint = false
      await command('BEGIN')
    },
    async rollback() {
      await command('ROLLBACK')
    },
    async atomically(org, work) {
      const wanted = org === 'system' ? '*' : org
      const begin = [
        ...(hasSavepoint ? ['RELEASE SAVEPOINT step'] : []),
        ...(scope === wanted ? [] : [`SET sandyard.org = '${wanted}'`]),
        'SAVEPOINT step',
      ]
      // Not waited for: it goes to the server together with the first statement.
      const begun = command(begin.join('; '))
      scope = wanted
      hasSavepoint = true
      try {
        const [, result] = await Promise.all([begun, work(queryable)])
        return result
      } catch (error) {
        await command('ROLLBACK TO SAVEPOINT step')
        throw error
      }
    },
    async once<R extends Row>(org: OrgId | 'system', statement: Statement) {
      const wanted = org === 'system' ? '*' : org
      const set = scope === wanted ? null : command(`SET sandyard.org = '${wanted}'`)
      scope = wanted
      const [, answer] = await Promise.all([set, queryable.query<R>(statement)])
      return answer
    },
    async keep() {
      await command('COMMIT')
    },
    get roundTrips() {
      return roundTrips
    },
    close: () => client.end(),
  }
}

/** The database with no gate in between. */
export function directDatabase(store: Store): Database {
  return {
    asOrg: (org, fn) => store.atomically(org, fn),
    asSystem: (fn) => store.atomically('system', fn),
    transaction: (scope, fn) => store.atomically(scope, fn),
    commitStatement: <R extends Row>(scope: OrgId | 'system', statement: Statement) =>
      store.atomically(scope, (q) => q.query<R>(statement)),
    close: () => Promise.resolve(),
  }
}

const READ_ENDINGS: readonly Ending[] = ['done', 'refused', 'dies_before', 'pauses_after']
const WRITE_ENDINGS: readonly Ending[] = ['done', 'refused', 'unheard', 'dies_before', 'dies_after', 'pauses_after']

/** The database as one life of a process sees it for one kind of its work: each statement that commits is a gate. */
export function makeSimDatabase({ gates, store }: { readonly gates: Gates; readonly store: Store }) {
  return (life: Life, work: string): Database => {
    const refusal = (): Error => new DatabaseUnavailable('the schedule took the database away')
    const gate = <T>(kind: 'read' | 'write', label: string, run: () => Promise<T>): Promise<T> =>
      gates.pass(
        life,
        { kind, label: `${work}: ${label}`, endings: kind === 'read' ? READ_ENDINGS : WRITE_ENDINGS, refusal },
        run,
      )
    const each = (scope: OrgId | 'system'): Queryable => ({
      query: <R extends Row = Row>(statement: Statement) =>
        gate(isRead(statement) ? 'read' : 'write', statement.name ?? 'statement', () =>
          store.once<R>(scope, statement),
        ),
    })
    return {
      asOrg: (org, fn) => fn(each(org)),
      asSystem: (fn) => fn(each('system')),
      transaction: (scope, fn) => gate('write', 'transaction', () => store.atomically(scope, fn)),
      commitStatement: <R extends Row>(scope: OrgId | 'system', statement: Statement) =>
        gate('write', statement.name ?? 'statement', () => store.atomically(scope, (q) => q.query<R>(statement))),
      close: () => Promise.resolve(),
    }
  }
}

function isRead({ text }: Statement): boolean {
  return /^\s*\(?\s*select\b/i.test(text)
}

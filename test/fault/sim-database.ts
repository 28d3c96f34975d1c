/**
 * The database of one schedule, in a real PostgreSQL. The whole schedule is one transaction on one connection, and each
 * transaction of the code under test is a savepoint in it. One ROLLBACK undoes a schedule, and no commit waits for a
 * disk. Transactions never overlap in a schedule; `transition-races.test.ts` and others test overlapping ones.
 */
import { Socket } from 'node:net'
import { Client } from 'pg'
import type { OrgId } from '../../src/domain/ids.ts'
import { columnTypes } from '../../src/store/postgres/column-types.ts'
import type { QueryResult, Database, Queryable, Statement, Transaction } from '../../src/store/postgres/database.ts'
import { DatabaseUnavailable } from '../../src/store/postgres/database-errors.ts'
import type { Ending, Gates, Incarnation } from './gates.ts'
import type { SeededChoices } from './seeded-choices.ts'
import { SNAPSHOT_TABLES } from './snapshot.ts'

type Row = Record<string, unknown>

/** The connection that holds the data of one schedule. */
export type SimStore = {
  /** Begins a schedule. `rollback` undoes everything that was written since. */
  begin(): Promise<void>
  rollback(): Promise<void>
  /**
   * Runs `work` as a transaction that sees the rows of one organization, or all rows. Rolls it back if `work` rejects.
   */
  transaction<T>(scope: OrgId | 'system', work: (tx: Transaction) => Promise<T>): Promise<T>
  /** Runs one statement outside a transaction. It must not fail, because that would abort the whole schedule. */
  statement<R extends Row>(scope: OrgId | 'system', statement: Statement): Promise<QueryResult<R>>
  /** Commits what was written since `begin`. Every later schedule starts with it. */
  commit(): Promise<void>
  /** The number of statements sent to PostgreSQL so far, without those that control transactions. */
  readonly roundTrips: number
  /** The number of those that may have changed rows of the tables in `SNAPSHOT_TABLES`. */
  readonly changes: number
  close(): Promise<void>
}

/** What processes of a schedule use of the connection. */
type Transactions = Pick<SimStore, 'transaction' | 'statement'>

const CHANGE = new RegExp(`\\b(insert\\s+into|update|delete\\s+from)\\s+(${SNAPSHOT_TABLES.join('|')})\\b`, 'i')
const changing = new Map<string, boolean>()

/**
 * Whether a statement may change a row of a snapshot. `runSchedule` notices at its end if this function missed one. Answers are
 * kept, because looking at each text anew took half of the time that fewer snapshots save (2026-11).
 */
function mayChangeSnapshot(text: string): boolean {
  const known = changing.get(text)
  if (known !== undefined) return known
  const found = CHANGE.test(text)
  changing.set(text, found)
  return found
}

/** Opens the one connection to a database that has the schema. */
export async function openSimStore(connectionString: string): Promise<SimStore> {
  const socket = new Socket()
  const client = new Client({ connectionString, types: columnTypes, pipeline: true, stream: () => socket })
  await client.connect()
  // A tenth of PostgreSQL's time went into plans for the values of one execution (2026-11).
  await client.query('SET synchronous_commit = off; SET plan_cache_mode = force_generic_plan')
  let roundTrips = 0
  let changes = 0
  let scope: string | null = null
  let hasSavepoint = false
  /** Makes statements of the same turn leave in one write to the socket. Measured: each write takes 20 to 100 us. */
  const corkSocket = (): void => {
    socket.cork()
    process.nextTick(() => socket.uncork())
  }
  const command = (text: string): Promise<unknown> => {
    corkSocket()
    return client.query(text)
  }
  const queryable: Queryable = {
    async query<R extends Row = Row>({ name, text, values }: Statement): Promise<QueryResult<R>> {
      roundTrips += 1
      if (mayChangeSnapshot(text)) changes += 1
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
    async transaction(org, work) {
      const setting = org === 'system' ? '*' : org
      const begin = [
        ...(hasSavepoint ? ['RELEASE SAVEPOINT step'] : []),
        ...(scope === setting ? [] : [`SET sandyard.org = '${setting}'`]),
        'SAVEPOINT step',
      ]
      // Not awaited, so that the savepoint is sent in one write with the first statement of `work`.
      const begun = command(begin.join('; '))
      scope = setting
      hasSavepoint = true
      const sent: Promise<unknown>[] = []
      const send = <R extends Row>(statement: Statement): Promise<QueryResult<R>> => {
        const one = queryable.query<R>(statement)
        sent.push(one)
        return one
      }
      const seeOnly = (one: OrgId): void => {
        scope = one
        sent.push(command(`SET sandyard.org = '${one}'`))
      }
      try {
        const [, result] = await Promise.all([begun, work({ ...queryable, send, seeOnly })])
        await Promise.all(sent)
        return result
      } catch (error) {
        await command('ROLLBACK TO SAVEPOINT step')
        scope = setting // as it was before the savepoint
        throw error
      }
    },
    async statement<R extends Row>(org: OrgId | 'system', statement: Statement) {
      const setting = org === 'system' ? '*' : org
      const set = scope === setting ? null : command(`SET sandyard.org = '${setting}'`)
      scope = setting
      const [, answer] = await Promise.all([set, queryable.query<R>(statement)])
      return answer
    },
    async commit() {
      await command('COMMIT')
    },
    get roundTrips() {
      return roundTrips
    },
    get changes() {
      return changes
    },
    close: () => client.end(),
  }
}

/**
 * The same store, but it undoes one in a hundred of the transactions that it reports as committed. The invariants must
 * notice.
 */
export function withLostTransactions(store: SimStore, seeded: SeededChoices): Transactions {
  class Lost extends Error {}
  return {
    ...store,
    async transaction<T>(scope: OrgId | 'system', work: (tx: Transaction) => Promise<T>): Promise<T> {
      if (!seeded.chance(1)) return store.transaction(scope, work)
      const done: T[] = []
      try {
        await store.transaction(scope, async (q) => {
          done.push(await work(q))
          throw new Lost('this transaction is lost on purpose')
        })
      } catch (error) {
        if (!(error instanceof Lost)) throw error
      }
      const [result] = done
      if (result === undefined) throw new Error('a transaction has no result')
      return result
    },
  }
}

/** A database whose statements don't wait at gates, for the test's own use. */
export function directDatabase(store: SimStore): Database {
  return {
    asOrg: (org, fn) => store.transaction(org, fn),
    asSystem: (fn) => store.transaction('system', fn),
    transaction: (scope, fn) => store.transaction(scope, fn),
    commitStatement: <R extends Row>(scope: OrgId | 'system', statement: Statement) =>
      store.transaction(scope, (q) => q.query<R>(statement)),
    isAmongOthers: () => false,
    close: () => Promise.resolve(),
  }
}

const READ_ENDINGS: readonly Ending[] = ['done', 'refused', 'dies_before', 'pauses_after']
const WRITE_ENDINGS: readonly Ending[] = [
  'done',
  'refused',
  'reported_failed',
  'dies_before',
  'dies_after',
  'pauses_after',
]

/**
 * Returns a function that opens the database for one process and one kind of work, whose name labels the gates. Each
 * statement outside a transaction, and each transaction as a whole, waits at a gate.
 */
export function makeSimDatabase({ gates, store }: { readonly gates: Gates; readonly store: Transactions }) {
  return (incarnation: Incarnation, work: string): Database => {
    const refusal = (): Error => new DatabaseUnavailable('the schedule made the database unavailable')
    const gate = <T>(kind: 'read' | 'write', label: string, run: () => Promise<T>): Promise<T> =>
      gates.pass(
        incarnation,
        { kind, label: `${work}: ${label}`, endings: kind === 'read' ? READ_ENDINGS : WRITE_ENDINGS, refusal },
        run,
      )
    const each = (scope: OrgId | 'system'): Queryable => ({
      query: <R extends Row = Row>(statement: Statement) =>
        gate(isRead(statement) ? 'read' : 'write', statement.name ?? 'statement', () =>
          store.statement<R>(scope, statement),
        ),
    })
    return {
      asOrg: (org, fn) => fn(each(org)),
      asSystem: (fn) => fn(each('system')),
      transaction: (scope, fn) => gate('write', 'transaction', () => store.transaction(scope, fn)),
      commitStatement: <R extends Row>(scope: OrgId | 'system', statement: Statement) =>
        gate('write', statement.name ?? 'statement', () => store.transaction(scope, (q) => q.query<R>(statement))),
      isAmongOthers: () => false,
      close: () => Promise.resolve(),
    }
  }
}

function isRead({ text }: Statement): boolean {
  return /^\s*\(?\s*select\b/i.test(text)
}

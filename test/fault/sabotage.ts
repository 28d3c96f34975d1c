/** Ways to break what the laws rest on, so that a test sees that they notice. */
import type { SyncRequest } from '../../src/contract/worker-protocol.ts'
import type { OrgId } from '../../src/domain/ids.ts'
import type { Queryable } from '../../src/store/database.ts'
import { openBySandbox } from './laws.ts'
import type { Switches } from './schedule.ts'
import type { Seeded } from './seeded.ts'
import type { Store } from './sim-database.ts'
import type { Snapshot } from './snapshot.ts'

/** What is done to reports, where switches say so. */
export function altering(
  { knowsRuns, knowsOrder }: Pick<Switches, 'knowsRuns' | 'knowsOrder'>,
  seen: () => Snapshot,
): (report: SyncRequest) => SyncRequest {
  let reports = 0
  return (report) => {
    const { seq } = report
    const open = knowsRuns ? null : openBySandbox(seen())
    return {
      ...report,
      seq: knowsOrder ? seq : ++reports,
      seen: report.seen.map((run) => ({ ...run, run_id: open?.get(run.sandbox_id)?.[0]?.id ?? run.run_id })),
    }
  }
}

/** A database that loses one transaction in a hundred and says that it is kept. */
export function forgetful(store: Store, seeded: Seeded): Store {
  class Lost extends Error {}
  return {
    ...store,
    async atomically<T>(scope: OrgId | 'system', work: (q: Queryable) => Promise<T>): Promise<T> {
      if (!seeded.chance(1)) return store.atomically(scope, work)
      const done: T[] = []
      try {
        await store.atomically(scope, async (q) => {
          done.push(await work(q))
          throw new Lost('the work of this transaction is thrown away')
        })
      } catch (error) {
        if (!(error instanceof Lost)) throw error
      }
      const [result] = done
      if (result === undefined) throw new Error('a transaction without a result')
      return result
    },
  }
}

/** Ways to break what the laws rest on, so that a test sees that they notice. */
import type { OrgId } from '../../src/domain/ids.ts'
import type { Queryable } from '../../src/store/postgres/database.ts'
import type { Seeded } from './seeded.ts'
import type { Store } from './sim-database.ts'

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

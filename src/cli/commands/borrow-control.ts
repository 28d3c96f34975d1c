import type { Config } from '../../config.ts'
import type { ControlDeps } from '../../control/deps.ts'
import { makeKeyCache } from '../../control/orgs/key-cache.ts'
import { systemClock } from '../../lib/clock.ts'
import { makeLog } from '../../lib/log.ts'
import { systemRandom } from '../../lib/random.ts'
import { makeUuids } from '../../lib/uuid.ts'
import { openSharedStore } from '../server/open-store.ts'

/** What a short command needs of the use cases' dependencies; dispose of it when the command is done. */
export type OperatorDeps = Pick<ControlDeps, 'db' | 'clock' | 'random' | 'uuids' | 'log' | 'keyCache'> & AsyncDisposable

/** Opens the database for a short command; while a server runs on the data folder, its database is used. */
export async function openOperatorDeps(config: Config): Promise<OperatorDeps> {
  const log = makeLog(config.logLevel)
  const store = await openSharedStore(config, log)
  return {
    db: store.db,
    clock: systemClock,
    random: systemRandom,
    uuids: makeUuids(systemClock, systemRandom),
    log,
    keyCache: makeKeyCache(),
    [Symbol.asyncDispose]: () => store[Symbol.asyncDispose](),
  }
}

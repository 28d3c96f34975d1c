import type { Config } from '../../config.ts'
import { makeLifecycleLog } from '../../control/sandboxes/transitions/lifecycle-log.ts'
import type { EventObserver } from '../../control/sandboxes/transitions/transition.ts'
import { explainWaiting, makeReadFleet } from '../../control/workers/explain-waiting.ts'
import { summarizeMissing } from '../../domain/workers/summarize-missing.ts'
import { systemClock } from '../../lib/clock.ts'
import { LOG_LEVELS, type Log } from '../../lib/log.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import type { Store } from './open-store.ts'

/** Makes the observer that writes the lives of sandboxes to the log. Empty if the log's level hides them. */
export function makeLifecycleObserver(config: Config, { db }: Pick<Store, 'db'>, log: Log): EventObserver {
  if (LOG_LEVELS.indexOf(config.logLevel) > LOG_LEVELS.indexOf('info')) return {}
  const readFleet = makeReadFleet({ db, clock: systemClock })
  return makeLifecycleLog({
    log,
    slugOfOrg: async (org) => (await db.asSystem((q) => orgs.find(q, org)))?.slug ?? null,
    explainWaiting: async (sandbox) => {
      const waiting = await explainWaiting({ db, settings: config, readFleet }, sandbox)
      return waiting === null ? null : summarizeMissing(waiting.missing)
    },
    monotonicMs: () => systemClock.monotonicMs(),
  })
}

import type { Config } from '../../config.ts'
import type { Log } from '../../lib/log.ts'
import { describeUnknownPlan } from '../describe-unknown-plan.ts'
import { printStatus } from '../print-status.ts'
import { openStore, type Store } from './open-store.ts'
import { describeOwnerServes } from './server-role.ts'

/** Opens the database of a server, and prints which one it is and what is weak about the role that serves. */
export async function openServerStore(config: Config, log: Log): Promise<Store> {
  printStatus(config.databaseUrl === null ? 'starting the embedded PostgreSQL' : 'using the PostgreSQL of DATABASE_URL')
  const store = await openStore(config, log)
  const warning = describeOwnerServes(store.serverRole)
  if (warning !== null) printStatus(warning)
  const unknownPlan = await describeUnknownPlan(store, config)
  if (unknownPlan !== null) printStatus(`${unknownPlan}. \`sandyard org create\` needs --plan until you make it`)
  return store
}

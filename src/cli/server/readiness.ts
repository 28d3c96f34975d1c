import { asId, type OrgId } from '../../domain/ids.ts'
import { NIL_UUID } from '../../lib/uuid.ts'
import type { Log } from '../../lib/log.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import type { Store } from './open-store.ts'

/** The checks of a server process that can serve requests. Each resolves with what is wrong, or null. */
export function readinessOf(store: Store, log: Log): (() => Promise<string | null>)[] {
  return [
    () => checkDatabase(store, log),
    () => Promise.resolve(checkSchema(store)),
    () => Promise.resolve(store.isDiskFull() ? DISK_FULL : null),
  ]
}

/** An id that no organization has. With it, a check can use the connection pool for requests. */
const NO_ORG = asId<OrgId>(NIL_UUID)

/**
 * Checks that the database answers on both connection pools: the one for requests and the one for the program's own
 * work. The error is only logged. It may name hosts and users, and `/readyz` is open to everybody.
 */
async function checkDatabase({ db }: Store, log: Log): Promise<string | null> {
  const ask = (q: Queryable) => q.query({ text: 'SELECT 1 AS alive' })
  try {
    await Promise.all([db.asSystem(ask), db.asOrg(NO_ORG, ask)])
    return null
  } catch (error) {
    log.warn({ error }, 'not ready: the database can’t be reached')
    return 'the database can’t be reached; the log says more'
  }
}

function checkSchema({ schema }: Store): string | null {
  return schema.isHeld ? null : 'the schema lock is not held: a migration may be running'
}

const DISK_FULL = 'the disk of the database is full: delete sandboxes or files of volumes, or give it more space'

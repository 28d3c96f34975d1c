import type { OrgId } from '../../domain/ids.ts'
import type { Transaction } from '../../store/postgres/database.ts'
import type { BaseDeps, FenceDeps } from '../deps.ts'

/**
 * Runs `work` in a transaction that sees one organization, for a client or for a loop. For a loop, the leader's fence comes first, which
 * reads what belongs to the system.
 */
export function orgTransaction<Result>(
  { db, fence }: Pick<BaseDeps, 'db'> & FenceDeps,
  org: OrgId,
  work: (tx: Transaction) => Promise<Result>,
): Promise<Result> {
  if (fence === undefined) return db.transaction(org, work)
  return db.transaction('system', async (tx) => {
    await fence(tx)
    tx.seeOnly(org)
    return work(tx)
  })
}

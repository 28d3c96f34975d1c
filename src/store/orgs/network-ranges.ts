/** The ranges of addresses that the operator opened for an organization, although all others are denied them. */
import type { OrgId } from '../../domain/ids.ts'
import type { Queryable } from '../postgres/database.ts'

/** The ranges that are open for an organization, in the order of their opening. */
export async function find(q: Queryable, org: OrgId): Promise<readonly string[]> {
  const { rows } = await q.query<{ readonly network_allow: readonly string[] }>({
    name: 'networkRanges.find',
    text: 'SELECT network_allow FROM orgs WHERE id = $1',
    values: [org],
  })
  return rows[0]?.network_allow ?? []
}

/** Replaces the open ranges of a locked organization. */
export async function save(tx: Queryable, org: OrgId, ranges: readonly string[], now: Date): Promise<void> {
  await tx.query({
    text: 'UPDATE orgs SET network_allow = $2, updated_at = $3 WHERE id = $1',
    values: [org, ranges, now],
  })
}

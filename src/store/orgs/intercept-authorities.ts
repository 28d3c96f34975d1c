/** The certificate authorities of organizations, which sign what sandboxes see of intercepted TLS connections. */
import type { OrgId } from '../../domain/ids.ts'
import type { Queryable } from '../postgres/database.ts'

export type AuthorityRow = { readonly id: string; readonly certificate: string; readonly key_sealed: Buffer }

/** The authority of the runs that were opened at an instant, or null. A replaced one goes on for the runs that have it. */
export async function findForRunOpenedAt(q: Queryable, org: OrgId, opened: Date): Promise<AuthorityRow | null> {
  const { rows } = await q.query<AuthorityRow>({
    name: 'interceptAuthorities.find',
    text: `SELECT id, certificate, key_sealed FROM intercept_authorities
           WHERE org_id = $1 AND (replaced_at IS NULL OR replaced_at > $2) ORDER BY created_at LIMIT 1`,
    values: [org, opened],
  })
  return rows[0] ?? null
}

/** Inserts an authority, unless the organization has a current one. */
export async function insert(
  q: Queryable,
  { id, org_id, certificate, key_sealed, now }: AuthorityRow & { readonly org_id: OrgId; readonly now: Date },
): Promise<void> {
  await q.query({
    text: `INSERT INTO intercept_authorities (id, org_id, certificate, key_sealed, created_at) VALUES ($1, $2, $3, $4, $5)
           ON CONFLICT (org_id) WHERE replaced_at IS NULL DO NOTHING`,
    values: [id, org_id, certificate, key_sealed, now],
  })
}

/** Ends the use of the current authority for new runs, and deletes those that no run has any more. */
export async function replace(q: Queryable, org: OrgId, now: Date): Promise<void> {
  await q.query({
    text: 'UPDATE intercept_authorities SET replaced_at = $2 WHERE org_id = $1 AND replaced_at IS NULL',
    values: [org, now],
  })
  await q.query({
    text: `DELETE FROM intercept_authorities WHERE org_id = $1 AND replaced_at <=
             coalesce((SELECT min(opened_at) FROM runs WHERE org_id = $1 AND ended_at IS NULL), $2)`,
    values: [org, now],
  })
}

/** Deletes an authority whose key is lost. */
export async function remove(q: Queryable, org: OrgId, id: string): Promise<void> {
  await q.query({ text: 'DELETE FROM intercept_authorities WHERE org_id = $1 AND id = $2', values: [org, id] })
}

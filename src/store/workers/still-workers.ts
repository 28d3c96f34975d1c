/**
 * Workers whose report says the same as the one before, and of which the database says the same, too. The leases of many
 * are prolonged by one statement.
 */
import type { SandboxId, WorkerId } from '../../domain/ids.ts'

/**
 * All in the database that an answer to a report of worker `w` depends on, as one text: whether it is drained, its open
 * runs, the volumes that lie on it, and which of the sandboxes that rest on it (a JSON list, without a run) are gone.
 */
export const PRINT = (resting: string): string => `md5(concat_ws('|', w.draining_since, w.drain_deadline_at,
  (SELECT string_agg(r.id::text || s.status, ',' ORDER BY r.id) FROM runs r JOIN sandboxes s ON s.id = r.sandbox_id
    WHERE r.worker_id = w.id AND r.ended_at IS NULL),
  (SELECT string_agg(concat_ws(' ', v.id, v.status, coalesce(v.capacity_gib, 0), coalesce(l.max_total_storage_gib, 0)), ',' ORDER BY v.id)
    FROM volumes v JOIN org_limits l ON l.org_id = v.org_id WHERE v.home_worker_id = w.id AND v.emptied_at IS NULL),
  (SELECT string_agg(t.id::text, ',' ORDER BY t.id) FROM json_array_elements_text(${resting}) AS t(id)
    JOIN sandboxes s ON s.id = t.id::uuid WHERE s.visible_until IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.sandbox_id = s.id AND r.ended_at IS NULL))))`

/** A worker's report, compared with the one before it of the same life. */
export type StillReport = {
  readonly worker_id: WorkerId
  readonly credentialSha256: Buffer
  readonly life: string
  /** The report before, which must be the last one that was taken in. */
  readonly last_seq: number
  readonly seq: number
  /** Sandboxes whose writable layer lies there and that did not run. */
  readonly resting: readonly SandboxId[]
  /** What `PRINT` said as the report before was taken in. */
  readonly print: string
}

/**
 * Takes reports in that say nothing new: prolongs the leases of those workers for which nothing has changed on either
 * side, and answers which these are. Of the others nothing is written. The caller commits it.
 */
export function renewal(
  reports: readonly StillReport[],
  lease: { readonly now: Date; readonly expiresAt: Date },
): { readonly name: string; readonly text: string; readonly values: readonly unknown[] } {
  return {
    name: 'stillWorkers.renewal',
    text: `UPDATE workers w SET lease_expires_at = $2, report_seq = u.seq
           FROM (
             SELECT w.id, p.seq FROM json_to_recordset($1::json) AS p(worker_id uuid, credential text, life uuid,
               last_seq bigint, seq bigint, resting json, print text)
             JOIN workers w ON w.id = p.worker_id
             WHERE w.credential_sha256 = decode(p.credential, 'hex') AND w.removed_at IS NULL AND w.life = p.life
               AND w.report_seq = p.last_seq AND p.seq > p.last_seq AND w.lease_expires_at >= $3
               AND ${PRINT('p.resting')} = p.print
             ORDER BY w.id FOR NO KEY UPDATE OF w) u
           WHERE w.id = u.id RETURNING w.id`,
    values: [
      JSON.stringify(
        reports.map(({ credentialSha256, ...report }) => ({ ...report, credential: credentialSha256.toString('hex') })),
      ),
      lease.expiresAt,
      lease.now,
    ],
  }
}

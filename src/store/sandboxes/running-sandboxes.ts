/** The sandboxes with an open run on a worker. */
import type { OrgId, RunId, SandboxId, WorkerId } from '../../domain/ids.ts'
import type { SandboxStatus } from '../../domain/sandboxes/lifecycle.ts'
import type { Queryable } from '../postgres/database.ts'

export type RunningSandboxRow = {
  readonly id: SandboxId
  readonly run_id: RunId
  readonly org: string
  readonly name: string
  readonly slug: string
  readonly status: SandboxStatus
  readonly worker_id: WorkerId
  readonly worker: string
  readonly vcpus: number
  readonly memory_mib: number
  readonly started_at: Date | null
}

/** Lists the newest of an organization, or of all (null). Needs a connection that sees all organizations. */
export async function list(q: Queryable, org: OrgId | null, limit: number): Promise<readonly RunningSandboxRow[]> {
  const { rows } = await q.query<RunningSandboxRow>({
    name: `runningSandboxes.list${org === null ? '' : 'OfOrg'}`,
    text: `SELECT s.id, r.id AS run_id, o.slug AS org, s.name, s.slug, s.status, r.worker_id, w.name AS worker, s.vcpus,
             s.memory_mib, s.started_at
           FROM (SELECT id, sandbox_id, worker_id FROM runs
                 WHERE ended_at IS NULL AND worker_id IS NOT NULL ${org === null ? '' : 'AND org_id = $2'}
                 ORDER BY sandbox_id DESC LIMIT $1) r
           JOIN sandboxes s ON s.id = r.sandbox_id JOIN orgs o ON o.id = s.org_id JOIN workers w ON w.id = r.worker_id
           ORDER BY s.id DESC`,
    values: org === null ? [limit] : [limit, org],
  })
  return rows
}

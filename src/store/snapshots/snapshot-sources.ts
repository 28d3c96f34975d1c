/** Sandboxes as the sources of snapshots and forks. */
import type { OrgId, SandboxId, WorkerId } from '../../domain/ids.ts'
import type { SandboxStatus } from '../../domain/sandboxes/lifecycle.ts'
import type { RegistrySelection } from '../../domain/spec/spec.ts'
import type { Queryable } from '../postgres/database.ts'
import { SPEC_PARTS } from '../sandboxes/sandboxes.ts'

export type SnapshotSource = {
  readonly name: string
  readonly status: SandboxStatus
  readonly image: string
  /** The worker with the sandbox's disk. Null: it was never placed. */
  readonly home_worker_id: WorkerId | null
}

export type ForkSource = {
  readonly status: SandboxStatus
  readonly spec_json: string
  /** Without the password of mode `inline`. */
  readonly registry: { readonly mode: RegistrySelection['mode'] }
  readonly secrets_sealed: Buffer | null
  readonly tls_key_sealed: Buffer | null
}

/** What a snapshot needs of a sandbox that clients can see, or null. A large specification is not read. */
export async function find(q: Queryable, org: OrgId, id: SandboxId): Promise<SnapshotSource | null> {
  const { rows } = await q.query<SnapshotSource>({
    name: 'snapshotSources.find',
    text: `SELECT s.name, s.status, ${SPEC_PARTS} ->> 'image' AS image, s.home_worker_id
           FROM sandboxes s WHERE s.org_id = $1 AND s.id = $2 AND s.visible_until IS NULL`,
    values: [org, id],
  })
  return rows[0] ?? null
}

/** What copies of a sandbox need that clients can see, with its whole specification, or null. */
export async function findForkSource(q: Queryable, org: OrgId, id: SandboxId): Promise<ForkSource | null> {
  const { rows } = await q.query<ForkSource>({
    name: 'snapshotSources.findForkSource',
    text: `SELECT status, spec::text AS spec_json, registry, secrets_sealed, tls_key_sealed
           FROM sandboxes WHERE org_id = $1 AND id = $2 AND visible_until IS NULL`,
    values: [org, id],
  })
  return rows[0] ?? null
}

/** Sandboxes as the sources of snapshots and forks. */
import type { OrgId, SandboxId, WorkerId } from '../../domain/ids.ts'
import type { SandboxStatus } from '../../domain/sandboxes/lifecycle.ts'
import type { SandboxSpec, RegistrySelection } from '../../domain/spec/spec.ts'
import type { Queryable } from '../postgres/database.ts'

export type SnapshotSource = {
  readonly name: string
  readonly status: SandboxStatus
  readonly spec: SandboxSpec
  /** The worker with the sandbox's disk. Null: it was never placed. */
  readonly home_worker_id: WorkerId | null
  /** Without the password of mode `inline`. */
  readonly registry: { readonly mode: RegistrySelection['mode'] }
  readonly secrets_sealed: Buffer | null
  readonly tls_key_sealed: Buffer | null
}

/** A sandbox that clients can see, or null. */
export async function find(q: Queryable, org: OrgId, id: SandboxId): Promise<SnapshotSource | null> {
  const { rows } = await q.query<SnapshotSource>({
    name: 'snapshotSources.find',
    text: `SELECT name, status, spec, home_worker_id, registry, secrets_sealed, tls_key_sealed
           FROM sandboxes WHERE org_id = $1 AND id = $2 AND visible_until IS NULL`,
    values: [org, id],
  })
  return rows[0] ?? null
}

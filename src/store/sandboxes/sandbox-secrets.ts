/** Changes of the secrets of sandboxes that exist. */
import type { OrgId, RunId, SandboxId, WorkerId } from '../../domain/ids.ts'
import type { SandboxStatus } from '../../domain/sandboxes/lifecycle.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'
import type { Queryable } from '../postgres/database.ts'

/** What a modification of a sandbox's secrets depends on. */
export type SecretsRow = {
  readonly name: string
  readonly status: SandboxStatus
  readonly spec: SandboxSpec
  readonly secrets_sealed: Buffer | null
  readonly home_worker_id: WorkerId | null
  /** The open run, or null. */
  readonly open_run_id: RunId | null
  /** The secrets that the open run keeps. Null: it has those of the sandbox. */
  readonly run_secrets_sealed: Buffer | null
}

/** Reads the secrets of a sandbox that clients can see, or null. With `locks`, no other transaction changes the row. */
export async function read(
  q: Queryable,
  { org_id, id }: { readonly org_id: OrgId; readonly id: SandboxId },
  { locks }: { readonly locks: boolean },
): Promise<SecretsRow | null> {
  const { rows } = await q.query<SecretsRow>({
    name: `sandboxSecrets.read${locks ? '.lock' : ''}`,
    text: `SELECT s.name, s.status, s.spec, s.secrets_sealed, s.home_worker_id, r.id AS open_run_id,
             r.secrets_sealed AS run_secrets_sealed
           FROM sandboxes s LEFT JOIN runs r ON r.id = s.run_id AND r.ended_at IS NULL
           WHERE s.org_id = $1 AND s.id = $2 AND s.visible_until IS NULL ${locks ? 'FOR UPDATE OF s' : ''}`,
    values: [org_id, id],
  })
  return rows[0] ?? null
}

export type ChangedSecrets = {
  readonly spec_json: string
  readonly projection_json: string
  readonly parts_json: string | null
  readonly secrets_sealed: Buffer | null
  readonly hasSecrets: boolean
  /** Whether the open run must get the change. */
  readonly isLive: boolean
}

/** SQL: the new projection, with the ports as they are shown, which the worker may have picked. */
const PROJECTION = `CASE WHEN spec_projection #> '{network,ports,0}' IS NULL THEN $3::text
  ELSE jsonb_set($3::text::jsonb, '{network,ports}', spec_projection::jsonb #> '{network,ports}')::text END`

/** Replaces the specification and the values of a sandbox. Its next runs need the ability `secrets` if it has any. */
export async function write(tx: Queryable, sandbox: SandboxId, changed: ChangedSecrets): Promise<void> {
  await tx.query({
    name: 'sandboxSecrets.write',
    text: `UPDATE sandboxes SET spec = $2::text::json, spec_bytes = octet_length($2::text), spec_parts = $7::json, spec_projection = (${PROJECTION})::json,
             projection_bytes = octet_length(${PROJECTION}), secrets_sealed = $4,
             abilities = array_remove(abilities, 'secrets') || CASE WHEN $5::boolean THEN '{secrets}'::text[] ELSE '{}' END,
             secrets_version = secrets_version + CASE WHEN $6::boolean THEN 1 ELSE 0 END WHERE id = $1`,
    values: [
      sandbox,
      changed.spec_json,
      changed.projection_json,
      changed.secrets_sealed,
      changed.hasSecrets,
      changed.isLive,
      changed.parts_json,
    ],
  })
}

/** Sets the secrets that an open run keeps, whatever becomes of those of its sandbox. */
export async function writeOfRun(tx: Queryable, run: RunId, sealed: Buffer): Promise<void> {
  await tx.query({
    name: 'sandboxSecrets.writeOfRun',
    text: 'UPDATE runs SET secrets_sealed = $2 WHERE id = $1 AND ended_at IS NULL',
    values: [run, sealed],
  })
}

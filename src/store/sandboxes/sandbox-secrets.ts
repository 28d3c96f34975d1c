/**
 * Changes of the secrets of sandboxes that exist. Of a specification, they read and send its member `network` alone. A
 * whole one may have 4 MiB: to parse that twice, and to send it, took turns of the event loop of 14 to 36 ms (2026-11).
 */
import type { Ability } from '../../domain/abilities.ts'
import type { OrgId, RunId, SandboxId, WorkerId } from '../../domain/ids.ts'
import type { SandboxStatus } from '../../domain/sandboxes/lifecycle.ts'
import type { PublishedPort } from '../../domain/spec/published-ports.ts'
import type { NetworkSpec } from '../../domain/spec/spec.ts'
import type { Queryable } from '../postgres/database.ts'

/** What a modification of a sandbox's secrets depends on. */
export type SecretsRow = {
  readonly name: string
  readonly status: SandboxStatus
  readonly network: NetworkSpec
  /** The ports as replies show them: the worker may have picked some. */
  readonly shown_ports: readonly PublishedPort[]
  /** Those of the given names that the sandbox's `env` sets. */
  readonly env_keys: readonly string[]
  readonly abilities: readonly Ability[]
  readonly secrets_sealed: Buffer | null
  readonly home_worker_id: WorkerId | null
  /** The open run, or null. */
  readonly open_run_id: RunId | null
  /** The secrets that the open run keeps. Null: it has those of the sandbox. */
  readonly run_secrets_sealed: Buffer | null
}

/**
 * Reads the secrets of a sandbox that clients can see, or null. `names` are those of the secrets to change. With
 * `locks`, no other transaction changes the row.
 */
export async function read(
  q: Queryable,
  { org_id, id }: { readonly org_id: OrgId; readonly id: SandboxId },
  { names, locks }: { readonly names: readonly string[]; readonly locks: boolean },
): Promise<SecretsRow | null> {
  const { rows } = await q.query<SecretsRow>({
    name: `sandboxSecrets.read${locks ? '.lock' : ''}`,
    text: `SELECT s.name, s.status, s.spec -> 'network' AS network, s.abilities, s.secrets_sealed, s.home_worker_id,
             coalesce(s.spec_projection #> '{network,ports}', '[]') AS shown_ports, r.id AS open_run_id,
             r.secrets_sealed AS run_secrets_sealed,
             ARRAY(SELECT e ->> 'key' FROM json_array_elements(s.spec -> 'env') e WHERE e ->> 'key' = ANY($3::text[])) AS env_keys
           FROM sandboxes s LEFT JOIN runs r ON r.id = s.run_id AND r.ended_at IS NULL
           WHERE s.org_id = $1 AND s.id = $2 AND s.visible_until IS NULL ${locks ? 'FOR UPDATE OF s' : ''}`,
    values: [org_id, id, names],
  })
  return rows[0] ?? null
}

export type ChangedSecrets = {
  /** The member `network` as JSON text: as it is stored, and as replies show it. */
  readonly network_json: string
  readonly projection_json: string
  readonly secrets_sealed: Buffer | null
  readonly hasSecrets: boolean
  /** Whether the open run must get the change. */
  readonly isLive: boolean
}

/** SQL: the text of a JSON object with another `network`. The other members stay as they are, in their order. */
function withNetwork(object: string, network: string): string {
  return `(SELECT '{' || string_agg(to_json(m.key)::text || ':' || CASE m.key WHEN 'network' THEN ${network} ELSE m.value::text END, ',' ORDER BY m.at) || '}'
             FROM json_each(${object}) WITH ORDINALITY AS m(key, value, at))`
}

/**
 * Replaces the secrets of a sandbox in its specification, and their values. Its next runs need the ability `secrets` if it has any. It gets
 * `spec_parts`, because secrets may make its specification large.
 */
export async function write(tx: Queryable, sandbox: SandboxId, changed: ChangedSecrets): Promise<void> {
  await tx.query({
    name: 'sandboxSecrets.write',
    text: `WITH changed AS MATERIALIZED (
             SELECT ${withNetwork('spec', '$2::text')} AS spec, ${withNetwork('spec_projection', '$3::text')} AS projection
             FROM sandboxes WHERE id = $1)
           UPDATE sandboxes s SET spec = c.spec::json, spec_bytes = octet_length(c.spec), spec_projection = c.projection::json,
             projection_bytes = octet_length(c.projection), secrets_sealed = $4,
             spec_parts = coalesce(s.spec_parts, json_build_object('image', s.spec -> 'image', 'mounts', s.spec -> 'mounts',
               'network', json_build_object('ports', s.spec #> '{network,ports}'))),
             abilities = array_remove(s.abilities, 'secrets') || CASE WHEN $5::boolean THEN '{secrets}'::text[] ELSE '{}' END,
             secrets_version = s.secrets_version + CASE WHEN $6::boolean THEN 1 ELSE 0 END
           FROM changed c WHERE s.id = $1`,
    values: [
      sandbox,
      changed.network_json,
      changed.projection_json,
      changed.secrets_sealed,
      changed.hasSecrets,
      changed.isLive,
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

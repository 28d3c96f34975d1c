import type { OrgId, SandboxId, VolumeId } from '../domain/ids.ts'
import { EVENT_TYPES } from '../domain/event-types.ts'
import type { Statement } from './database.ts'
import type { NewEvent } from './events.ts'
import { IS_UNCOUNTED, withinSizes } from './quotas.ts'

/** A new sandbox with its labels and, when it is to start, its first run. */
export type NewSandbox = {
  readonly id: SandboxId
  readonly org_id: OrgId
  readonly name: string
  readonly slug: string
  readonly status: 'created' | 'starting'
  readonly status_reason: 'scheduling' | null
  readonly ephemeral: boolean
  readonly created_at: Date
  readonly vcpus: number
  readonly memory_mib: number
  /** null: the worker's own size. */
  readonly disk_size_mib: number | null
  readonly max_duration_secs: number | null
  readonly abilities: readonly string[]
  readonly labels: Readonly<Record<string, string>>
  /** JSON texts, so that they are rendered once. */
  readonly spec_json: string
  readonly projection_json: string
  readonly registry_json: string
  readonly registry_sealed: Buffer | null
  readonly run_id: string | null
  /** The volumes that it mounts. */
  readonly volume_ids: readonly VolumeId[]
}

/** What one create commits. */
export type Admission = { readonly sandbox: NewSandbox; readonly events: readonly NewEvent[] }

/**
 * What became of an admission. One that is not free is suspended, too large for a limit, or in an organization whose
 * counts have limits: nothing was inserted, and it must be judged under the organization's lock. A free one that was not
 * admitted met another sandbox's name or slug, or mounts a volume that is not active.
 */
export type Admitted = { readonly id: SandboxId; readonly is_free: boolean; readonly is_admitted: boolean }

/**
 * The statement that commits admissions of one organization: sandboxes, labels, runs and events, all or nothing; its
 * rows are `Admitted`. `isJudged`: they were found to fit under the organization's lock, so that all are free. One
 * statement, because a batch waits for each round trip: as a transaction around two it took four, and 64 clients got
 * 3,000 creates a second in place of 3,900 (2026-11; random bytes drawn ahead and remembered offers are part of it).
 */
export function insertMany(
  org: OrgId,
  admissions: readonly Admission[],
  how: { readonly isJudged: boolean },
): Statement {
  const volumeIds = [...new Set(admissions.flatMap(({ sandbox }) => sandbox.volume_ids))]
  const mounts = volumeIds.length > 0
  return {
    name: `admissions.insertMany${mounts ? '.mounting' : ''}`,
    text: `WITH org AS MATERIALIZED (SELECT *, ${IS_UNCOUNTED} AS is_uncounted FROM org_limits WHERE org_id = $2),
           input AS MATERIALIZED (
             SELECT r.*, ($3 OR (l.is_uncounted AND (r.run_id IS NULL OR NOT l.is_suspended) AND ${SIZES_FIT})) IS TRUE
               AS is_free FROM json_to_recordset($1::json) AS r(id uuid, org_id uuid, name text, slug text, status text,
               status_reason text, ephemeral boolean, created_at timestamptz, vcpus integer, memory_mib integer,
               disk_size_mib integer, max_duration_secs bigint, volume_ids json, abilities json, labels json,
               spec json, projection json, registry json, registry_sealed text, run_id uuid, events json)
             LEFT JOIN org l ON true),
           ${mounts ? `${HELD_VOLUMES},` : ''}
           s AS (
             INSERT INTO sandboxes (id, org_id, name, slug, status, status_reason, ephemeral, created_at, vcpus,
               memory_mib, abilities, spec, spec_projection, registry, registry_sealed)
             SELECT id, org_id, name, slug, status, status_reason, ephemeral, created_at, vcpus, memory_mib,
               ARRAY(SELECT json_array_elements_text(abilities)), spec, projection, registry,
               decode(registry_sealed, 'hex')
             FROM input WHERE is_free ${mounts ? `AND ${VOLUMES_ARE_HELD}` : ''} ON CONFLICT DO NOTHING RETURNING id),
           l AS (
             INSERT INTO sandbox_labels (org_id, key, value, sandbox_id)
             SELECT i.org_id, e.key, e.value, i.id FROM input i JOIN s ON s.id = i.id, json_each_text(i.labels) e),
           r AS (
             INSERT INTO runs (id, org_id, sandbox_id, vcpus, memory_mib, disk_mib, is_ephemeral, opened_at)
             SELECT i.run_id, i.org_id, i.id, i.vcpus, i.memory_mib, coalesce(i.disk_size_mib, 0), i.ephemeral, i.created_at
             FROM input i JOIN s ON s.id = i.id WHERE i.run_id IS NOT NULL),
           ${mounts ? `${MOUNTS},` : ''}
           e AS (
             INSERT INTO events (id, org_id, timestamp, category, event_type, sandbox_id, actor, payload)
             SELECT e.id, i.org_id, e.timestamp, e.category, e.event_type, i.id, e.actor, e.payload
             FROM input i JOIN s ON s.id = i.id, json_to_recordset(i.events) AS e(id uuid, timestamp timestamptz,
               category text, event_type text, actor json, payload json))
           SELECT i.id, i.is_free, s.id IS NOT NULL AS is_admitted FROM input i LEFT JOIN s ON s.id = i.id`,
    values: [`[${admissions.map(toJson).join(',')}]`, org, how.isJudged, ...(mounts ? [volumeIds] : [])],
  }
}

/** Whether a volume is to be deleted is settled by who locks it first. */
const HELD_VOLUMES = `held AS MATERIALIZED (
    SELECT id FROM volumes WHERE id = ANY($4::uuid[]) AND org_id = $2 AND status = 'active' ORDER BY id FOR SHARE)`
const VOLUMES_ARE_HELD = `NOT EXISTS (
    SELECT 1 FROM json_array_elements_text(volume_ids) AS w(id) WHERE w.id::uuid NOT IN (SELECT held.id FROM held))`
const MOUNTS = `m AS (
    INSERT INTO sandbox_volumes (org_id, sandbox_id, volume_id)
    SELECT i.org_id, i.id, w.id::uuid FROM input i JOIN s ON s.id = i.id, json_array_elements_text(i.volume_ids) AS w(id))`

const SIZES_FIT = withinSizes({
  vcpus: 'r.vcpus',
  memory_mib: 'r.memory_mib',
  disk_mib: 'r.disk_size_mib',
  max_duration_secs: 'r.max_duration_secs',
})

/** Put together by hand, so that the texts which are JSON already are not escaped into strings and parsed twice. */
function toJson({ sandbox, events }: Admission): string {
  const { spec_json, projection_json, registry_json, registry_sealed, ...columns } = sandbox
  const told = events.map(({ id, timestamp, event_type, actor, payload }) => {
    return { id, timestamp, event_type, category: EVENT_TYPES[event_type].category, actor, payload }
  })
  const rest = JSON.stringify({ ...columns, registry_sealed: registry_sealed?.toString('hex') ?? null, events: told })
  return `${rest.slice(0, -1)},"spec":${spec_json},"projection":${projection_json},"registry":${registry_json}}`
}

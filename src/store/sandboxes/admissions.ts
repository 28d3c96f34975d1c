import type { Actor } from '../../domain/orgs/caller.ts'
import type { OrgId, SandboxId, VolumeId } from '../../domain/ids.ts'
import { EVENT_TYPES } from '../../domain/events/event-types.ts'
import * as arrays from '../postgres/binary-array.ts'
import type { Statement } from '../postgres/database.ts'
import type { NewEvent } from '../events/events.ts'
import { HAS_NO_COUNT_LIMITS, withinSizes } from '../orgs/quotas.ts'

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
export type AdmissionResult = {
  readonly id: SandboxId
  readonly skips_quota_check: boolean
  readonly is_admitted: boolean
}

/**
 * The statement that commits admissions of one organization: sandboxes, labels, runs and events, all or nothing; its
 * rows are `AdmissionResult`. `isJudged`: they were found to fit under the organization's lock, so that all are free. One
 * statement, because a batch waits for each round trip: as a transaction around two it took four, and 64 clients got
 * 3,000 creates a second instead of 3,900 (2026-11; random bytes drawn ahead and remembered offers are part of it).
 */
export function insertMany(
  org: OrgId,
  admissions: readonly Admission[],
  how: { readonly isQuotaChecked: boolean },
): Statement {
  const mounts = admissions.flatMap(({ sandbox: { id, volume_ids } }) => volume_ids.map((volume) => ({ id, volume })))
  const isMounting = mounts.length > 0
  const volumes = [arrays.uuids(mounts.map(({ id }) => id)), arrays.uuids(mounts.map(({ volume }) => volume))]
  return {
    name: `admissions.insertMany${isMounting ? '.mounting' : ''}`,
    text: `WITH org AS MATERIALIZED (SELECT *, ${HAS_NO_COUNT_LIMITS} AS has_no_count_limits FROM org_limits WHERE org_id = $1),
           text_table AS MATERIALIZED (SELECT $3::json[] AS texts),
           input AS MATERIALIZED (
             SELECT r.*, ($2 OR (l.has_no_count_limits AND (r.run_id IS NULL OR NOT l.is_suspended) AND ${SIZES_FIT})) IS TRUE
               AS skips_quota_check FROM unnest(${SANDBOX_ARRAYS}) AS r(id, name, slug, status, status_reason, ephemeral, created_at,
               vcpus, memory_mib, disk_size_mib, max_duration_secs, abilities, spec, projection, registry, registry_sealed, run_id)
             LEFT JOIN org l ON true),
           ${isMounting ? `${LOCKED_VOLUMES},` : ''}
           s AS (
             INSERT INTO sandboxes (id, org_id, name, slug, status, status_reason, ephemeral, created_at, vcpus, memory_mib,
               disk_size_mib, max_duration_secs, abilities, spec, spec_projection, registry, registry_sealed, run_id)
             SELECT id, $1, name, slug, status, status_reason, ephemeral, created_at, vcpus, memory_mib, disk_size_mib,
               max_duration_secs, string_to_array(abilities, ','), ${textAt('spec')}, ${textAt('projection')},
               ${textAt('registry')}, registry_sealed, run_id
             FROM input WHERE skips_quota_check ${isMounting ? `AND ${VOLUMES_ARE_LOCKED}` : ''} ON CONFLICT DO NOTHING RETURNING id),
           l AS (
             INSERT INTO sandbox_labels (org_id, key, value, sandbox_id)
             SELECT $1, r.key, r.value, r.id FROM unnest($21::uuid[], $22::text[], $23::text[]) AS r(id, key, value)
             JOIN s ON s.id = r.id),
           r AS (
             INSERT INTO runs (id, org_id, sandbox_id, vcpus, memory_mib, disk_mib, is_ephemeral, opened_at)
             SELECT i.run_id, $1, i.id, i.vcpus, i.memory_mib, coalesce(i.disk_size_mib, 0), i.ephemeral, i.created_at
             FROM input i JOIN s ON s.id = i.id WHERE i.run_id IS NOT NULL),
           ${isMounting ? `${MOUNTS},` : ''}
           e AS (
             INSERT INTO events (id, org_id, timestamp, category, event_type, sandbox_id, actor, payload)
             SELECT r.id, $1, r.timestamp, r.category, r.event_type, r.sandbox_id, ${textAt('actor')}, r.payload
             FROM unnest($24::uuid[], $25::timestamptz[], $26::text[], $27::text[], $28::uuid[], $29::integer[], $30::json[])
               AS r(id, timestamp, category, event_type, sandbox_id, actor, payload) JOIN s ON s.id = r.sandbox_id)
           SELECT i.id, i.skips_quota_check, s.id IS NOT NULL AS is_admitted FROM input i LEFT JOIN s ON s.id = i.id`,
    values: [org, how.isQuotaChecked, ...columnArrays(admissions), ...(isMounting ? volumes : [])],
  }
}

/** One array a column, and not a row as JSON: see `binary-array.ts`. The first is a subselect, so that a plan is made once for all lengths. */
const SANDBOX_ARRAYS = `(SELECT $4::uuid[]), $5::text[], $6::text[], $7::text[], $8::text[], $9::boolean[], $10::timestamptz[],
  $11::integer[], $12::integer[], $13::integer[], $14::bigint[], $15::text[], $16::integer[], $17::integer[], $18::integer[],
  $19::bytea[], $20::uuid[]`

function textAt(index: string): string {
  return `(SELECT texts FROM text_table)[${index}]`
}

/** The values of `$3` to `$30`. Specifications that many of a batch share are sent and read once. */
function columnArrays(admissions: readonly Admission[]): readonly Buffer[] {
  const sandboxes = admissions.map(({ sandbox }) => sandbox)
  const labels = sandboxes.flatMap(({ id, labels }) =>
    Object.entries(labels).map(([key, value]) => ({ id, key, value })),
  )
  const events = admissions.flatMap((admission) => admission.events)
  const { indexOf, texts } = makeTextTable()
  const pooledColumns = [
    arrays.integers(sandboxes.map(({ spec_json }) => indexOf(spec_json))),
    arrays.integers(sandboxes.map(({ projection_json }) => indexOf(projection_json))),
    arrays.integers(sandboxes.map(({ registry_json }) => indexOf(registry_json))),
  ]
  const actors = new Map<Actor, number>()
  for (const { actor } of events) if (!actors.has(actor)) actors.set(actor, indexOf(JSON.stringify(actor)))
  return [
    arrays.jsons(texts),
    arrays.uuids(sandboxes.map(({ id }) => id)),
    arrays.texts(sandboxes.map(({ name }) => name)),
    arrays.texts(sandboxes.map(({ slug }) => slug)),
    arrays.texts(sandboxes.map(({ status }) => status)),
    arrays.texts(sandboxes.map(({ status_reason }) => status_reason)),
    arrays.booleans(sandboxes.map(({ ephemeral }) => ephemeral)),
    arrays.instants(sandboxes.map(({ created_at }) => created_at)),
    arrays.integers(sandboxes.map(({ vcpus }) => vcpus)),
    arrays.integers(sandboxes.map(({ memory_mib }) => memory_mib)),
    arrays.integers(sandboxes.map(({ disk_size_mib }) => disk_size_mib)),
    arrays.bigints(sandboxes.map(({ max_duration_secs }) => max_duration_secs)),
    arrays.texts(sandboxes.map(({ abilities }) => abilities.join(','))),
    ...pooledColumns,
    arrays.byteStrings(sandboxes.map(({ registry_sealed }) => registry_sealed)),
    arrays.uuids(sandboxes.map(({ run_id }) => run_id)),
    arrays.uuids(labels.map(({ id }) => id)),
    arrays.texts(labels.map(({ key }) => key)),
    arrays.texts(labels.map(({ value }) => value)),
    arrays.uuids(events.map(({ id }) => id)),
    arrays.instants(events.map(({ timestamp }) => timestamp)),
    arrays.texts(events.map(({ event_type }) => EVENT_TYPES[event_type].category)),
    arrays.texts(events.map(({ event_type }) => event_type)),
    arrays.uuids(events.map(({ sandbox_id }) => sandbox_id)),
    arrays.integers(events.map(({ actor }) => actors.get(actor) ?? null)),
    arrays.jsons(events.map(({ payload }) => JSON.stringify(payload))),
  ]
}

/** Texts without their repetitions; `indexOf` answers where one stands, counted from one as arrays of PostgreSQL are. */
function makeTextTable(): { readonly indexOf: (text: string) => number; readonly texts: string[] } {
  const texts: string[] = []
  const indexes = new Map<string, number>()
  let last = ''
  let lastIndex = 0
  const indexOf = (text: string): number => {
    if (lastIndex > 0 && text === last) return lastIndex // to compare is ten times quicker than to hash
    last = text
    lastIndex = indexes.get(text) ?? texts.push(text)
    indexes.set(text, lastIndex)
    return lastIndex
  }
  return { indexOf, texts }
}

/** Whether a volume is to be deleted is settled by who locks it first. */
const LOCKED_VOLUMES = `locked AS MATERIALIZED (
    SELECT id FROM volumes WHERE id = ANY($32::uuid[]) AND org_id = $1 AND status = 'active' ORDER BY id FOR SHARE)`
const VOLUMES_ARE_LOCKED = `NOT EXISTS (
    SELECT 1 FROM unnest($31::uuid[], $32::uuid[]) AS w(sandbox_id, id)
    WHERE w.sandbox_id = input.id AND w.id NOT IN (SELECT locked.id FROM locked))`
const MOUNTS = `m AS (
    INSERT INTO sandbox_volumes (org_id, sandbox_id, volume_id)
    SELECT $1, w.sandbox_id, w.id FROM unnest($31::uuid[], $32::uuid[]) AS w(sandbox_id, id) JOIN s ON s.id = w.sandbox_id)`

const SIZES_FIT = withinSizes({
  vcpus: 'r.vcpus',
  memory_mib: 'r.memory_mib',
  disk_mib: 'r.disk_size_mib',
  max_duration_secs: 'r.max_duration_secs',
})

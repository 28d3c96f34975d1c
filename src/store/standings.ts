/**
 * Where sandboxes stand: status and open run, read under a lock and written together. Only `control/transition.ts`
 * may import this file: it is the one writer of sandbox status.
 */
import { createHash } from 'node:crypto'
import { EVENT_TYPES } from '../domain/event-types.ts'
import type { OrgId, RunId, SandboxId, WorkerId } from '../domain/ids.ts'
import type { CauseCode, SandboxStatus, StatusReason } from '../domain/lifecycle.ts'
import type { Queryable } from './database.ts'
import type { NewEvent } from './events.ts'
import { IS_UNCOUNTED, withinSizes } from './quotas.ts'

/** A sandbox and its open run, locked until the transaction ends. */
export type StandingRow = {
  readonly org_id: OrgId
  readonly name: string
  readonly slug: string
  readonly status: SandboxStatus
  readonly status_reason: StatusReason | null
  readonly ephemeral: boolean
  readonly is_hidden: boolean
  readonly vcpus: number
  readonly memory_mib: number
  /** null: the worker's own size. */
  readonly disk_size_mib: number | null
  readonly max_duration_secs: number | null
  /** The organization's limit on how long one start may run. */
  readonly max_uptime_minutes: number | null
  readonly run_id: RunId | null
  readonly worker_id: WorkerId | null
  /** The latest time that is written of its last runs. */
  readonly latest_at: Date | null
  readonly mounts_volumes: boolean
}

/**
 * Locks a sandbox's row; null when there is none. The run is read after the lock was had: a plain join would show the
 * run as it was when the wait for the lock began, so that a stop which waited for a start left its run open.
 */
export async function lock(tx: Queryable, id: SandboxId): Promise<StandingRow | null> {
  const { rows } = await tx.query<StandingRow>({
    name: 'standings.lock',
    text: `SELECT s.org_id, s.name, s.slug, s.status, s.status_reason, s.ephemeral, s.visible_until IS NOT NULL AS is_hidden,
             s.vcpus, s.memory_mib, (s.spec #>> '{lifecycle,max_duration_secs}')::bigint AS max_duration_secs,
             (s.spec #>> '{resources,disk_size_mib}')::integer AS disk_size_mib,
             (SELECT l.max_uptime_minutes_per_sandbox FROM org_limits l WHERE l.org_id = s.org_id) AS max_uptime_minutes,
             r.id AS run_id, r.worker_id,
             greatest(s.stopped_at, r.started_at, (SELECT o.opened_at FROM runs o WHERE o.id = r.id)) AS latest_at,
             EXISTS (SELECT 1 FROM sandbox_volumes v WHERE v.sandbox_id = s.id) AS mounts_volumes
           FROM (SELECT * FROM sandboxes WHERE id = $1 FOR UPDATE) s LEFT JOIN LATERAL sandyard_open_run(s.id) r ON true`,
    values: [id],
  })
  return rows[0] ?? null
}

/** What a transition writes to the sandbox; undefined leaves a column as it is. */
export type SandboxChange = {
  readonly status: SandboxStatus
  readonly status_reason: StatusReason | null
  readonly last_failure_message?: string | null
  readonly started_at?: Date
  readonly stopped_at?: Date | null
  readonly home_worker_id?: WorkerId
  /** The run that a start opens. */
  readonly run_id?: RunId
  /** True forgets the sealed registry credential: it was for one create-and-start only. */
  readonly forget_registry_secret?: boolean
}

/** What one transition writes: the sandbox, its open run when it has one, and the audit event. */
export type Written = {
  readonly sandbox: { readonly id: SandboxId; readonly change: SandboxChange }
  readonly run: { readonly id: RunId; readonly change: RunChange } | null
  readonly event: NewEvent
}

/**
 * Writes a transition in one statement, prepared once for each combination of columns: as three statements that were
 * planned anew, two transitions took 4 ms of a start in place of 2 (2026-11, two cores).
 */
export async function write(tx: Queryable, { sandbox, run, event }: Written): Promise<void> {
  const values: unknown[] = []
  const place = (value: unknown): string => `$${String(values.push(value))}`
  const set = (columns: Readonly<Record<string, unknown>>): string =>
    Object.entries(columns)
      .flatMap(([name, value]) => (value === undefined ? [] : [`${name} = ${place(value)}`]))
      .join(', ')
  const { forget_registry_secret, ...columns } = sandbox.change
  const forgotten = forget_registry_secret === true ? { registry_sealed: null } : {}
  const parts = [`s AS (UPDATE sandboxes SET ${set({ ...columns, ...forgotten })} WHERE id = ${place(sandbox.id)})`]
  if (run !== null && Object.keys(run.change).length > 0) {
    const { outcome, ...rest } = run.change
    const written = set({ ...rest, outcome: outcome === undefined ? undefined : JSON.stringify(outcome) })
    parts.push(`r AS (UPDATE runs SET ${written} WHERE id = ${place(run.id)})`)
  }
  const text = `WITH ${parts.join(', ')} ${insertEvent(event, place)}`
  const name = `standings.write.${createHash('sha1').update(text).digest('base64url')}`
  await tx.query({ name, text, values })
}

function insertEvent(event: NewEvent, place: (value: unknown) => string): string {
  const { id, org_id, timestamp, event_type, sandbox_id } = event
  const plain = [id, org_id, timestamp, EVENT_TYPES[event_type].category, event_type, sandbox_id]
  const places = [...plain, JSON.stringify(event.actor), JSON.stringify(event.payload)].map(place)
  return `INSERT INTO events (id, org_id, timestamp, category, event_type, sandbox_id, actor, payload)
          VALUES (${places.join(', ')})`
}

export type NewRun = {
  readonly id: RunId
  readonly org_id: OrgId
  readonly sandbox_id: SandboxId
  readonly vcpus: number
  readonly memory_mib: number
  /** null: what the worker gives, known once it runs. */
  readonly disk_size_mib: number | null
  readonly ephemeral: boolean
  readonly opened_at: Date
}

/**
 * Opens a run; false, and nothing is written, when the organization is suspended, has counts to keep, or allows no
 * sandbox so large: then it must be judged under the organization's lock. `isJudged`: it was, and is opened. A second
 * open run of a sandbox violates `runs_one_open`.
 */
export async function openRun(tx: Queryable, run: NewRun, how: { readonly isJudged: boolean }): Promise<boolean> {
  const { rowCount } = await tx.query({
    name: 'standings.openRun',
    text: `INSERT INTO runs (id, org_id, sandbox_id, vcpus, memory_mib, disk_mib, is_ephemeral, opened_at)
           SELECT $1, $2, $3, $4::integer, $5::integer, coalesce($6::integer, 0), $7, $8 FROM org_limits l
           WHERE l.org_id = $2 AND ($9 OR (NOT l.is_suspended AND ${IS_UNCOUNTED} AND ${SIZES_FIT}))`,
    values: [
      run.id,
      run.org_id,
      run.sandbox_id,
      run.vcpus,
      run.memory_mib,
      run.disk_size_mib,
      run.ephemeral,
      run.opened_at,
      how.isJudged,
    ],
  })
  return rowCount === 1
}

/** A start of a sandbox that may run longer than allowed is ended at the limit, not refused. */
const SIZES_FIT = withinSizes({
  vcpus: '$4::integer',
  memory_mib: '$5::integer',
  disk_mib: '$6::integer',
  max_duration_secs: 'NULL::bigint',
})

export type RunChange = {
  readonly worker_id?: WorkerId
  readonly placed_at?: Date
  /** Since when it is known that no worker has room. */
  readonly waits_since?: Date
  readonly started_at?: Date
  readonly deadline_at?: Date
  readonly disk_mib?: number
  readonly stop_requested_at?: Date
  readonly stop_cause?: CauseCode
  readonly ended_at?: Date
  readonly outcome?: object
}

/** One sandbox with everything that belongs to it, as operators see it. Deleted sandboxes are included. */
import type { OrgId, RunId, SandboxId, VolumeId } from '../../domain/ids.ts'
import type { IsolationLevel } from '../../domain/isolation.ts'
import type { CauseCode, SandboxStatus, StatusReason } from '../../domain/sandboxes/lifecycle.ts'
import type { RunOutcome } from '../../domain/sandboxes/run.ts'
import type { SpecProjection } from '../../domain/spec/project-spec.ts'
import type { VolumeKind, VolumeStatus } from '../../domain/volumes/volume.ts'
import type { Queryable } from '../postgres/database.ts'

/** The row of a sandbox, with its organization and the worker that stores its disk. */
export type SandboxDetailsRow = {
  readonly id: SandboxId
  readonly org_id: OrgId
  readonly org: string
  readonly org_suspended_at: Date | null
  readonly name: string
  readonly slug: string
  readonly status: SandboxStatus
  readonly status_reason: StatusReason | null
  readonly ephemeral: boolean
  readonly last_failure_message: string | null
  readonly created_at: Date
  readonly started_at: Date | null
  readonly stopped_at: Date | null
  /** When its restart policy starts it again. Null: it doesn't. */
  readonly restart_at: Date | null
  /** How many restarts in a row led to its latest run. */
  readonly restart_count: number
  /** Null: not deleted. */
  readonly deleted_at: Date | null
  readonly isolation: IsolationLevel | null
  readonly abilities: readonly string[]
  readonly vcpus: number
  readonly memory_mib: number
  readonly disk_size_mib: number | null
  /** The worker that stores its disk. */
  readonly home_worker: string | null
  readonly registry_mode: string
  readonly spec: SpecProjection
}

/** The sandbox with this id, or null. */
export async function find(q: Queryable, id: SandboxId): Promise<SandboxDetailsRow | null> {
  const { rows } = await q.query<SandboxDetailsRow>({
    name: 'sandboxDetails.find',
    text: `SELECT s.id, s.org_id, o.slug AS org, o.suspended_at AS org_suspended_at, s.name, s.slug, s.status, s.status_reason,
             s.ephemeral, s.last_failure_message, s.created_at, s.started_at, s.stopped_at, s.restart_at, s.restart_count, s.visible_until AS deleted_at,
             s.isolation, s.abilities, s.vcpus, s.memory_mib, s.disk_size_mib, w.name AS home_worker,
             s.registry ->> 'mode' AS registry_mode, s.spec_projection AS spec
           FROM sandboxes s JOIN orgs o ON o.id = s.org_id LEFT JOIN workers w ON w.id = s.home_worker_id
           WHERE s.id = $1`,
    values: [id],
  })
  return rows[0] ?? null
}

/** A run of a sandbox with the name of its worker. */
export type RunDetails = {
  readonly id: RunId
  readonly worker: string | null
  readonly opened_at: Date
  readonly placed_at: Date | null
  readonly started_at: Date | null
  readonly deadline_at: Date | null
  readonly stop_requested_at: Date | null
  readonly stop_cause: CauseCode | null
  readonly ended_at: Date | null
  readonly outcome: RunOutcome | null
  readonly waits_since: Date | null
}

/** The latest runs of a sandbox, newest first. */
export async function latestRuns(q: Queryable, id: SandboxId, limit: number): Promise<readonly RunDetails[]> {
  const { rows } = await q.query<RunDetails>({
    name: 'sandboxDetails.latestRuns',
    text: `SELECT r.id, w.name AS worker, r.opened_at, r.placed_at, r.started_at, r.deadline_at, r.stop_requested_at,
             r.stop_cause, r.ended_at, r.outcome, r.waits_since
           FROM runs r LEFT JOIN workers w ON w.id = r.worker_id
           WHERE r.sandbox_id = $1 ORDER BY r.opened_at DESC, r.id DESC LIMIT $2`,
    values: [id, limit],
  })
  return rows
}

/** A volume that a sandbox mounts. */
export type MountedVolumeDetails = {
  readonly id: VolumeId
  readonly kind: VolumeKind
  /** Null: the default volume. */
  readonly name: string | null
  readonly status: VolumeStatus
  readonly capacity_gib: number | null
  readonly used_bytes: number | null
  readonly worker: string | null
}

/** The volumes that a sandbox mounts. */
export async function mountedVolumes(q: Queryable, id: SandboxId): Promise<readonly MountedVolumeDetails[]> {
  const { rows } = await q.query<MountedVolumeDetails>({
    name: 'sandboxDetails.mountedVolumes',
    text: `SELECT v.id, v.kind, v.name, v.status, v.capacity_gib, v.used_bytes::float8, w.name AS worker
           FROM sandbox_volumes m JOIN volumes v ON v.id = m.volume_id LEFT JOIN workers w ON w.id = v.home_worker_id
           WHERE m.sandbox_id = $1 ORDER BY v.id`,
    values: [id],
  })
  return rows
}

/** The times of all runs of a sandbox that are still stored. */
export type RunTotals = { readonly runs: number; readonly running_secs: number }

/** Adds up the runs of a sandbox. An open run counts until `now`. */
export async function runTotals(q: Queryable, id: SandboxId, now: Date): Promise<RunTotals> {
  const { rows } = await q.query<RunTotals>({
    name: 'sandboxDetails.runTotals',
    text: `SELECT count(*)::integer AS runs, coalesce(extract(epoch FROM
             sum(greatest(coalesce(ended_at, $2) - started_at, interval '0'))), 0)::float8 AS running_secs
           FROM runs WHERE sandbox_id = $1`,
    values: [id, now],
  })
  return rows[0] ?? { runs: 0, running_secs: 0 }
}

/**
 * Places new sandboxes in the transaction that creates them. That saves a create the placement loop's reads, its commit, and a
 * second version of the rows of sandbox and run: see docs/decisions/0081.
 */
import type { OrgId, WorkerId } from '../../../domain/ids.ts'
import { SYSTEM_ACTOR } from '../../../domain/orgs/caller.ts'
import { RESTART_LABEL } from '../../../domain/sandboxes/restart.ts'
import { isUnavailable, type Queryable } from '../../../store/postgres/database.ts'
import { hasLargeSpec, type Admission, type NewSandbox } from '../../../store/sandboxes/admissions.ts'
import type { SandboxStateRow } from '../../../store/sandboxes/sandbox-state-rows.ts'
import * as capacity from '../../../store/workers/capacity.ts'
import type { BaseDeps } from '../../deps.ts'
import { makeFleetSnapshot, type FleetSnapshot, type SnapshotDeps } from './fleet-snapshot.ts'
import { writesOf, type TransitionStep } from '../transitions/transition-step.ts'

/**
 * Larger batches are left to the placement loop. Their inserts take longer, and would keep the reports of their workers waiting for
 * the locks of the workers' rows. Decision 81 has what was measured.
 */
const PLACED_TOGETHER_MAX = 32

/** Why a sandbox got a worker. */
export const PLACEMENT_CAUSE = { actor: SYSTEM_ACTOR, code: 'placement' } as const

/** A worker that a snapshot of the fleet suggests for a new sandbox. */
export type Suggestion = { readonly id: WorkerId; readonly name: string }

/** Workers for new sandboxes, by a snapshot of the fleet. A sandbox without one is left to the placement loop. */
export type AdmissionPlacer = {
  /** Never rejects. Without a snapshot it suggests nothing. */
  suggest(batch: readonly Admission[]): Promise<ReadonlyMap<Admission, Suggestion>>
  /** Call it when suggestions were not used because the snapshot may be wrong. */
  forget(): void
  /** Call it when suggestions were not used because a run waits. Nothing is suggested until a later read of the fleet finds none. */
  noteWaiting(): void
  /**
   * Call it after each batch. While an organization's creates must be counted, nothing is suggested for them: their capacity
   * would be reserved before the check of their quota, and in vain.
   */
  noteCounted(org: OrgId, isCounted: boolean): void
}

/** Makes the placer of one process. Its snapshot is read again as often as the placement loop reads its own. */
export function makeAdmissionPlacer(deps: SnapshotDeps & Pick<BaseDeps, 'log'>): AdmissionPlacer {
  const snapshot = makeFleetSnapshot(deps)
  const countedOrgs = new Set<OrgId>()
  let hasWaiting = false
  return {
    forget: () => {
      snapshot.forget()
    },
    noteWaiting: () => {
      hasWaiting = true
    },
    noteCounted: (org, isCounted) => {
      if (isCounted) countedOrgs.add(org)
      else countedOrgs.delete(org)
    },
    async suggest(batch) {
      const placeable = batch.filter(
        ({ placeable_image, sandbox }) => placeable_image !== null && !countedOrgs.has(sandbox.org_id),
      )
      if (placeable.length === 0 || batch.length > PLACED_TOGETHER_MAX) return new Map()
      // The worker's row would stay locked while a large specification is written. Beside starts of 4 MiB, the p95 of others until running was 282
      // and 301 ms, and is 73 and 94 (2026-11, in turn, 2 cores).
      if (batch.some(hasLargeSpec)) return new Map()
      try {
        if (await snapshot.refresh()) hasWaiting = await deps.db.asSystem(capacity.hasWaiting)
      } catch (error) {
        deps.log[isUnavailable(error) ? 'debug' : 'warn']({ error }, 'the fleet could not be read for new sandboxes')
        return new Map()
      }
      if (hasWaiting) return new Map()
      return new Map(
        placeable.flatMap((admission) => {
          const id = allocate(snapshot, admission)
          return id === null ? [] : [[admission, { id, name: snapshot.nameOf(id) }]]
        }),
      )
    },
  }
}

function allocate(snapshot: FleetSnapshot, { sandbox, placeable_image: image }: Admission): WorkerId | null {
  const { id: sandbox_id, run_id, org_id, vcpus, memory_mib, disk_size_mib: disk_mib, abilities, created_at } = sandbox
  if (run_id === null) return null
  const request = snapshot.requestOf({
    run_id,
    sandbox_id,
    org_id,
    opened_at: created_at.toISOString(),
    vcpus,
    memory_mib,
    disk_mib,
    abilities,
    image,
    home_worker_id: null,
    may_fetch: false,
    is_waiting: false,
    volumes: null,
    ports: null,
  })
  return snapshot.capacityIndex.allocate(request)
}

/** An admission with the step that places its run. */
export type PlacedAdmission = { readonly admission: Admission; readonly step: TransitionStep }

/** The admissions that got capacity. While a run waits for capacity, none gets it here. */
export type Placements = { readonly placed: ReadonlyMap<Admission, PlacedAdmission>; readonly hasWaiting: boolean }

/**
 * Reserves capacity for suggestions, and returns the admissions that got it, with their worker and the event of their placement. The
 * workers stay locked until the transaction ends. While older runs wait for capacity, nothing is placed here: they come first.
 */
export async function placeAdmissions(
  deps: Pick<BaseDeps, 'clock' | 'uuids'>,
  tx: Queryable,
  suggestions: ReadonlyMap<Admission, Suggestion>,
): Promise<Placements> {
  const now = deps.clock.now()
  const reservations = [...suggestions].map(([{ sandbox }, { id: worker_id }]) => {
    const { vcpus, memory_mib, disk_size_mib: disk_mib } = sandbox
    return { worker_id, vcpus, memory_mib, disk_mib }
  })
  const [free, hasWaiting] = await Promise.all([capacity.lockFree(tx, reservations, now), capacity.hasWaiting(tx)])
  const fits = hasWaiting ? [] : free.reserve(reservations)
  const placed = new Map(
    [...suggestions].flatMap(([admission, worker], index) =>
      fits[index] === true ? [[admission, placedOn(deps, admission, { worker, now })]] : [],
    ),
  )
  return { placed, hasWaiting }
}

function placedOn(
  deps: Pick<BaseDeps, 'uuids'>,
  { sandbox, events, placeable_image }: Admission,
  { worker, now }: { readonly worker: Suggestion; readonly now: Date },
): PlacedAdmission {
  const { run_id } = sandbox
  const at = now > sandbox.created_at ? now : sandbox.created_at
  const request = { sandbox_id: sandbox.id, run_id, event: 'placed', cause: PLACEMENT_CAUSE, worker } as const
  const step: TransitionStep = { request, row: stateOf(sandbox), status: 'starting', run_id, now, at }
  const placement = { worker_id: worker.id, placed_at: at }
  const admission: Admission = {
    sandbox: { ...sandbox, status_reason: null, placement },
    events: [...events, writesOf(deps, step).event],
    placeable_image,
  }
  return { admission, step }
}

/** The state of a new sandbox before its placement. */
function stateOf(sandbox: NewSandbox): SandboxStateRow {
  const { id, org_id, name, slug, status, status_reason, ephemeral, vcpus, memory_mib, disk_size_mib } = sandbox
  return {
    id,
    org_id,
    name,
    slug,
    status,
    status_reason,
    ephemeral,
    is_hidden: false,
    vcpus,
    memory_mib,
    disk_size_mib,
    home_worker_id: null,
    max_duration_secs: sandbox.max_duration_secs,
    max_uptime_minutes: null,
    latest_run_id: sandbox.run_id,
    run_id: sandbox.run_id,
    worker_id: null,
    opened_at: sandbox.created_at,
    placed_at: null,
    trace_parent: sandbox.trace_parent ?? null,
    started_at: null,
    stop_cause: null,
    latest_at: sandbox.created_at,
    mounts_volumes: false,
    restart_policy: sandbox.labels[RESTART_LABEL] ?? null,
    restart_at: null,
    restart_count: 0,
  }
}

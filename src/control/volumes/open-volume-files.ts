import type { DesiredVolume } from '../../contract/workers/worker-protocol.ts'
import type { VolumeFiles } from '../../contract/volumes/volume-protocol.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import type { WorkerId } from '../../domain/ids.ts'
import { canReachVolumes, type VolumeNeeds } from '../../domain/workers/placement.ts'
import { mayServeOrg } from '../../domain/workers/worker-bounds.ts'
import { Problem } from '../../domain/problem.ts'
import { capacityBytes } from '../../domain/volumes/volume.ts'
import * as volumeMounts from '../../store/volumes/volume-mounts.ts'
import * as volumes from '../../store/volumes/volumes.ts'
import * as workers from '../../store/workers/workers.ts'
import type { BaseDeps } from '../deps.ts'
import { openWorkerStream, type WorkerStreams } from '../streams/open-worker-stream.ts'
import { getVolume, type VolumeRef } from './read-volumes.ts'
import { makeVolumeClient } from './volume-client.ts'

export type VolumeFilesDeps = Pick<BaseDeps, 'db' | 'clock' | 'uuids' | 'log'> & WorkerStreams

/** A volume and its files on the worker that holds it. Each file operation opens its own stream. */
export type OpenVolumeFiles = { readonly volume: volumes.PlacedVolume; readonly files: VolumeFiles }

/**
 * Finds the files of a volume of the organization. A volume without a home worker gets one now. Throws
 * `volume_not_found`, `invalid_state_transition` for a volume that is being deleted, and `unavailable` while no live
 * worker can hold it.
 */
export async function openVolumeFiles(
  deps: VolumeFilesDeps,
  caller: Caller,
  { ref, signal }: { readonly ref: VolumeRef; readonly signal: AbortSignal },
): Promise<OpenVolumeFiles> {
  const volume = await getVolume(deps, caller, ref)
  if (volume.status !== 'active') throw beingDeleted()
  const limitGib = await deps.db.asOrg(caller.org_id, (q) => volumes.storageLimitGib(q, caller.org_id))
  const needs_caps = volume.capacity_gib !== null || limitGib !== null
  const worker_id = await workerOf(deps, volume, needs_caps)
  const wanted: DesiredVolume = {
    org_id: volume.org_id,
    volume_id: volume.id,
    capacity_bytes: capacityBytes(volume.capacity_gib),
    org_capacity_bytes: capacityBytes(limitGib),
  }
  const target = { worker_id, purpose: { kind: 'volume', volume: wanted } } as const
  return {
    volume,
    files: makeVolumeClient(() => openWorkerStream(deps, target, { signal, messages: STREAM_MESSAGES })),
  }
}

async function workerOf(deps: VolumeFilesDeps, volume: volumes.PlacedVolume, needs_caps: boolean): Promise<WorkerId> {
  const all = await deps.db.asSystem((q) => workers.listLive(q, deps.clock.now()))
  const live = all.filter((worker) => mayServeOrg(worker, volume.org_id))
  const candidates = live.filter(({ is_draining }) => !is_draining)
  const home = hasHome(volume)
    ? volume
    : await assignHome(deps, volume, pickWorker(preferUsable(candidates), { ...NO_NEEDS, needs_caps }))
  const homes = home.home_worker_id === null ? [] : [home.home_worker_id]
  return pickWorker(live, { homes, needs_shared: home.is_shared, needs_caps }).id
}

/**
 * Workers whose sandboxes can mount the volume, and which serve its files to clients. A worker with the driver `kubernetes` lacks
 * one or the other.
 */
function preferUsable(candidates: readonly workers.WorkerRow[]): readonly workers.WorkerRow[] {
  const mounting = candidates.filter(({ driver }) => driver?.abilities.includes('named_mounts'))
  const serving = mounting.filter(({ storage }) => storage?.serves_files !== false)
  return [serving, mounting].find((some) => some.length > 0) ?? candidates
}

const NO_NEEDS: VolumeNeeds = { homes: [], needs_shared: false, needs_caps: false }

function hasHome({ home_worker_id, is_shared }: volumes.VolumeHome): boolean {
  return is_shared || home_worker_id !== null
}

/** The worker with the most free memory among those that can hold a volume. */
function pickWorker(live: readonly workers.WorkerRow[], needs: VolumeNeeds): workers.WorkerRow {
  const [best] = live
    .filter((worker) => canReachVolumes(worker, needs))
    .toSorted((a, b) => b.memory_mib - b.used_memory_mib - (a.memory_mib - a.used_memory_mib))
  if (best !== undefined) return best
  const caps = needs.needs_caps ? ' and enforces caps' : ''
  const message = `no live worker has this volume or can create it${caps}`
  throw new Problem('unavailable', { message, retryAfterSeconds: 1 })
}

/** Assigns a home worker to a volume. If another request has already assigned one, returns that home. */
async function assignHome(
  deps: VolumeFilesDeps,
  volume: volumes.PlacedVolume,
  worker: workers.WorkerRow,
): Promise<volumes.VolumeHome> {
  const is_shared = worker.storage?.is_shared ?? false
  const home = { is_shared, home_worker_id: is_shared ? null : worker.id }
  const assigned = await deps.db.asOrg(volume.org_id, (q) => volumeMounts.assignHome(q, volume.id, home))
  if (assigned === null) throw beingDeleted()
  return assigned
}

const STREAM_MESSAGES = {
  late: 'the worker of this volume did not answer',
  full: 'too many streams are being opened',
} as const

function beingDeleted(): Problem {
  return new Problem('invalid_state_transition', {
    details: { field: 'status', seen: 'deleting', accepted: ['active'] },
  })
}

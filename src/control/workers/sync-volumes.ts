import { createHash } from 'node:crypto'
import type { RunVolume, SyncAnswer, SyncRequest } from '../../contract/workers/worker-protocol.ts'
import type { RunId, WorkerId } from '../../domain/ids.ts'
import { capacityBytes } from '../../domain/volumes/volume.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as volumeMounts from '../../store/volumes/volume-mounts.ts'
import * as volumeReports from '../../store/volumes/volume-reports.ts'

type VolumeLimits = Pick<volumeReports.StoredVolume, 'org_id' | 'volume_id' | 'capacity_gib' | 'max_total_storage_gib'>

/** A volume with the caps to enforce, in bytes. */
function desiredVolumeOf({
  org_id,
  volume_id,
  capacity_gib,
  max_total_storage_gib,
}: VolumeLimits): Omit<RunVolume, 'kind' | 'name'> {
  const org_capacity_bytes = capacityBytes(max_total_storage_gib)
  return { org_id, volume_id, capacity_bytes: capacityBytes(capacity_gib), org_capacity_bytes }
}

/** The version of an empty list of volumes. */
export const NO_VOLUMES_VERSION = createHash('sha256').digest('base64url')

/** The part of an answer about volumes: the caps to enforce and the volumes to delete, with a version of both. */
export async function answerVolumes(
  q: Queryable,
  worker_id: WorkerId,
  report: Pick<SyncRequest, 'storage' | 'volumes' | 'known_volumes_version'>,
): Promise<Pick<SyncAnswer, 'volumes_version' | 'volumes' | 'discard_volumes'>> {
  const held = await volumeReports.storedOn(q, { worker_id, is_shared: report.storage.is_shared })
  const deleted = await volumeReports.findDeleted(q, report.volumes ?? [])
  const wanted = held.filter(({ status }) => status === 'active').map(desiredVolumeOf)
  const leaving = [...held.filter(({ status }) => status === 'deleting'), ...deleted]
  const discard_volumes = leaving.map(({ org_id, volume_id }) => ({ org_id, volume_id }))
  const hash = createHash('sha256')
  for (const { volume_id, capacity_bytes, org_capacity_bytes } of wanted)
    hash.update(`${volume_id} ${String(capacity_bytes)} ${String(org_capacity_bytes)}\n`)
  for (const { volume_id } of discard_volumes) hash.update(`${volume_id} discarded\n`)
  const volumes_version = hash.digest('base64url')
  const isKnown = volumes_version === report.known_volumes_version
  return { volumes_version, volumes: isKnown ? null : wanted, discard_volumes }
}

/** The volumes of a worker's open runs, by run. */
export async function volumesOfRuns(q: Queryable, worker: WorkerId): Promise<ReadonlyMap<RunId, readonly RunVolume[]>> {
  const byRun = Map.groupBy(await volumeMounts.ofWorker(q, worker), ({ run_id }) => run_id)
  return new Map(
    [...byRun].map(([run, mounted]) => [
      run,
      mounted.map((volume) => ({ ...desiredVolumeOf(volume), kind: volume.kind, name: volume.name })),
    ]),
  )
}

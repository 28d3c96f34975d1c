import type { VolumeHome } from '../../store/volumes/volumes.ts'

/** The topic of those who hold volumes that every worker of a shared storage sees. */
export const SHARED_VOLUMES_TOPIC = 'volumes:shared'
/** The topic of the loop that takes deleted volumes off the table. */
export const REAP_VOLUMES_TOPIC = 'volumes:reap'

/** Whom to wake when something of a volume has changed that its worker must know. */
export function volumeTopics({ home_worker_id, is_shared }: VolumeHome): readonly string[] {
  if (is_shared) return [SHARED_VOLUMES_TOPIC]
  return home_worker_id === null ? [] : [`worker:${home_worker_id}`]
}

/**
 * The topics of notifications between server processes (`store/postgres/notifications.ts`). A notification is a hint: every
 * subscriber also looks again after a while, so that a lost one costs time and nothing else.
 */
import type { ApiKeyId, OrgId, SandboxId } from '../domain/ids.ts'
import type { VolumeHome } from '../store/volumes/volumes.ts'

/** Runs wait to be placed, or capacity became free. */
export const PENDING_TOPIC = 'pending'
/** Limits, plans or suspensions changed. */
export const QUOTAS_TOPIC = 'quotas'
/** A volume waits to be deleted, or its worker holds nothing of it any more. */
export const REAP_VOLUMES_TOPIC = 'volumes:reap'
/** Workers that see a shared storage must hear of a change to its volumes. */
export const SHARED_VOLUMES_TOPIC = 'volumes:shared'
/** A process left a stream ticket that others must show to their workers. */
export const STREAM_TICKETS_TOPIC = 'stream_tickets'

/** A sandbox changed its status or was deleted. */
export function sandboxTopic(id: SandboxId): string {
  return `sandbox:${id}`
}

/** The desired state of a worker changed. */
export function workerTopic(worker: string): string {
  return `worker:${worker}`
}

/** A worker has a stream ticket to take. */
export function ticketTopic(worker: string): string {
  return `tickets:${worker}`
}

/** An API key was revoked; notified in the transaction that revokes it. */
export function apiKeyTopic(id: ApiKeyId): string {
  return `api_key:${id}`
}

/** An organization was suspended; notified in the transaction that suspends it. */
export function orgTopic(id: OrgId): string {
  return `org:${id}`
}

/** The workers that must hear of a change to a volume: its home, all that share its storage, or none yet. */
export function volumeTopics({ home_worker_id, is_shared }: VolumeHome): readonly string[] {
  if (is_shared) return [SHARED_VOLUMES_TOPIC]
  return home_worker_id === null ? [] : [workerTopic(home_worker_id)]
}

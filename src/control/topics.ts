/**
 * The topics of notifications between server processes (`store/postgres/notifications.ts`). A notification is only a
 * hint. Every subscriber also checks the database regularly, so a lost notification costs only time.
 */
import type { ApiKeyId, OrgId, SandboxId, SessionId, SnapshotId, SshKeyId } from '../domain/ids.ts'
import type { VolumeHome } from '../store/volumes/volumes.ts'

/** Runs wait to be placed, or capacity became free. */
export const PLACEMENT_TOPIC = 'pending'
/** Limits, plans or suspensions changed. */
export const QUOTAS_TOPIC = 'quotas'
/** A volume waits to be deleted, or its worker has deleted all of its files. */
export const REAP_VOLUMES_TOPIC = 'volumes:reap'
/** A snapshot is to be made, or its data is to be deleted. */
export const SNAPSHOTS_TOPIC = 'snapshots'
/** A volume in a shared storage changed. All workers with that storage must get the change. */
export const SHARED_VOLUMES_TOPIC = 'volumes:shared'
/** A webhook changed, or a delivery is to be sent again. */
export const WEBHOOKS_TOPIC = 'webhooks'
/** A process inserted a stream ticket that the other processes must show to their workers. */
export const STREAM_TICKETS_TOPIC = 'stream_tickets'

/** A sandbox changed its status or was deleted. */
export function sandboxTopic(id: SandboxId): string {
  return `sandbox:${id}`
}

/** The previews of a sandbox changed. */
export function previewTopic(id: SandboxId): string {
  return `preview:${id}`
}

/** The making of a snapshot has ended. */
export function snapshotTopic(id: SnapshotId): string {
  return `snapshot:${id}`
}

/** The desired state of a worker changed. */
export function workerTopic(worker: string): string {
  return `worker:${worker}`
}

/** A worker has a new stream ticket. */
export function ticketTopic(worker: string): string {
  return `tickets:${worker}`
}

/** An API key was revoked. The transaction that revokes it sends the notification. */
export function apiKeyTopic(id: ApiKeyId): string {
  return `api_key:${id}`
}

/** An SSH key was removed. It has the topic of an API key, because both are watched as keys of callers. */
export function sshKeyTopic(id: SshKeyId): string {
  return `api_key:${id}`
}

/** A session ended, or its member's rights changed. It has the topic of an API key, as an SSH key has. */
export function sessionTopic(id: SessionId): string {
  return `api_key:${id}`
}

/** An organization was suspended. The transaction that suspends it sends the notification. */
export function orgTopic(id: OrgId): string {
  return `org:${id}`
}

/**
 * The topics that notify the workers that must get a change of a volume: its home worker, or all workers that share its
 * storage. A volume without a home has none.
 */
export function volumeTopics({ home_worker_id, is_shared }: VolumeHome): readonly string[] {
  if (is_shared) return [SHARED_VOLUMES_TOPIC]
  return home_worker_id === null ? [] : [workerTopic(home_worker_id)]
}

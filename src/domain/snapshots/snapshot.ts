import type { OrgId, SandboxId, SnapshotId, SnapshotOperationId, WorkerId } from '../ids.ts'

/** The making of a snapshot. */
export const SNAPSHOT_STATUSES = ['queued', 'in_progress', 'succeeded', 'failed'] as const
export type SnapshotStatus = (typeof SNAPSHOT_STATUSES)[number]

/** A snapshot of a sandbox's disk, with the operation that makes it. */
export type Snapshot = {
  readonly id: SnapshotId
  readonly operation_id: SnapshotOperationId
  readonly org_id: OrgId
  /** Unique in the organization. Null: it was made for a fork, and clients never see it. */
  readonly name: string | null
  readonly status: SnapshotStatus
  readonly sandbox_id: SandboxId
  /** The name that the sandbox had. */
  readonly sandbox_name: string
  /** The worker with the snapshot's data. */
  readonly worker_id: WorkerId
  /** The reference of the image that the disk was made over. */
  readonly image: string
  readonly labels: Readonly<Record<string, string>>
  /** The size of the disk as sandboxes see it. Null until it is complete, like the next three. */
  readonly disk_bytes: number | null
  /** What the snapshot takes of its worker's disk. */
  readonly size_bytes: number | null
  readonly digest: string | null
  /** The canonical JSON text whose hash is `digest`. */
  readonly manifest: string | null
  /** Why it could not be made. */
  readonly error: { readonly code: string; readonly message: string } | null
  readonly created_at: Date
  readonly updated_at: Date
  readonly completed_at: Date | null
}

/** The maximum number of snapshots of an organization. */
export const SNAPSHOTS_MAX = 10_000
const NAME_MAX_CHARS = 128

/** Describes a valid name of a snapshot. A client takes a name with a slash, or with a dot or tilde first, for a path. */
export const SNAPSHOT_NAME_RULE = `1 to ${String(NAME_MAX_CHARS)} letters, digits, dots, hyphens and underscores, a letter or digit first`
const NAME_SHAPE = /^[A-Za-z0-9][A-Za-z0-9._-]*$/

/** Whether a text is a valid name of a snapshot. */
export function isSnapshotName(text: string): boolean {
  return text.length <= NAME_MAX_CHARS && NAME_SHAPE.test(text)
}

/** Renders a complete snapshot as JSON text. */
export function renderSnapshot(snapshot: Snapshot): string {
  const { id, name, sandbox_id, digest, size_bytes, manifest, labels, completed_at } = snapshot
  const before = { kind: 'disk', name, location: { type: 'managed', id }, sandbox_id, digest, size_bytes }
  // The manifest is the stored text itself: clients hash it.
  return `${JSON.stringify(before).slice(0, -1)},"manifest":${manifest ?? 'null'},${JSON.stringify({ labels, created_at: completed_at }).slice(1)}`
}

/** Renders the operation that makes a snapshot as JSON text. */
export function renderOperation(snapshot: Snapshot): string {
  const { operation_id: id, status, error, completed_at, created_at, updated_at } = snapshot
  const before = JSON.stringify({ id, kind: 'disk', status }).slice(0, -1)
  const result = status === 'succeeded' ? `"result":${renderSnapshot(snapshot)},` : ''
  const rest = { ...(error === null ? {} : { error }), ...(completed_at === null ? {} : { completed_at }) }
  return `${before},${result}${JSON.stringify({ ...rest, created_at, updated_at }).slice(1)}`
}

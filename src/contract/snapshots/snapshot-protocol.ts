/**
 * What the control plane asks of a worker about snapshots. A stream of kind `snapshot` has the task as its purpose. The worker does
 * it, writes one `SnapshotAnswer` as JSON, and ends the stream. Every task may be repeated. A task goes on if the stream breaks.
 */
import type { SandboxId, SnapshotId } from '../../domain/ids.ts'

export type SnapshotTask =
  /** Copies the disk of a sandbox, running or not. The answer has `taken`. */
  | {
      readonly do: 'take'
      readonly snapshot_id: SnapshotId
      readonly sandbox_id: SandboxId
      /** Whether the answer has the hash of the disk. */
      readonly records_integrity: boolean
    }
  /** Deletes a snapshot. */
  | { readonly do: 'discard'; readonly snapshot_id: SnapshotId }

export type TakenSnapshot = {
  /** The size of the disk as sandboxes see it. */
  readonly disk_bytes: number
  /** What the snapshot takes of the worker's disk, blocks that it shares included. */
  readonly taken_bytes: number
  readonly image_reference: string
  /** `sha256:` and 64 hexadecimal digits. */
  readonly image_digest: string
  /** The hash of the disk in hexadecimal digits, or null. */
  readonly sha256: string | null
}

/** `no_disk`: the sandbox was never started. `capture_failed`: the worker could not copy the disk. */
export const SNAPSHOT_FAILURES = ['no_disk', 'disk_full', 'unsupported', 'capture_failed'] as const
export type SnapshotFailureCode = (typeof SNAPSHOT_FAILURES)[number]

export type SnapshotAnswer =
  | { readonly taken: TakenSnapshot | null }
  | { readonly failed: { readonly code: SnapshotFailureCode; readonly message: string } }

import { createHash } from 'node:crypto'
import type { TakenSnapshot } from '../../contract/snapshots/snapshot-protocol.ts'
import { renderManifest } from '../../domain/snapshots/manifest.ts'
import type { Snapshot } from '../../domain/snapshots/snapshot.ts'
import type { SnapshotResult } from '../../store/snapshots/snapshot-work.ts'

/** What a complete snapshot has beyond what was asked for, with the manifest that clients check. */
export function resultOf(
  { sandbox_name, labels }: Pick<Snapshot, 'sandbox_name' | 'labels'>,
  taken: TakenSnapshot,
  completed_at: Date,
): SnapshotResult {
  const manifest = renderManifest({ ...taken, completed_at, sandbox_name, labels })
  const digest = `sha256:${createHash('sha256').update(manifest).digest('hex')}`
  return { disk_bytes: taken.disk_bytes, size_bytes: taken.taken_bytes, digest, manifest, completed_at }
}

import type { StorageReport, StoredVolume, DesiredVolume } from '../../contract/workers/worker-protocol.ts'
import type { OrgId, VolumeId } from '../../domain/ids.ts'

/** Which volume. */
export type VolumeKey = { readonly org_id: OrgId; readonly volume_id: VolumeId }

/**
 * Where a worker keeps volumes. It keeps no truth in memory: what it holds is read from the system, so that a worker
 * that was killed goes on where it was. Every method may be repeated.
 */
export interface VolumeStorage {
  readonly report: StorageReport
  /**
   * The folder of a volume on this machine, made when it is not there, with its caps in force. Rejects when a cap is
   * asked for that can't be enforced here. The folder belongs to user 0 of the sandboxes.
   */
  open(volume: DesiredVolume): Promise<string>
  /** Puts caps in force on a volume that is here already; one that is not is no error. */
  applyCaps(volume: DesiredVolume): Promise<void>
  /** Deletes a volume with all that is in it. Rejects, and may be tried again, while something has it mounted. */
  remove(volume: VolumeKey): Promise<void>
  /** Every volume that lies here with what it takes. */
  measure(): Promise<readonly StoredVolume[]>
  /** Lets go of what no sandbox needs any more. */
  close(): Promise<void>
}

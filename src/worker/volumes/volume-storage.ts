import { chmod, chown, stat } from 'node:fs/promises'
import type { DesiredVolume, StorageReport, StoredVolume } from '../../contract/workers/worker-protocol.ts'
import { type OrgId, type VolumeId, asId } from '../../domain/ids.ts'

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

/** What the folders of organizations and volumes are named by; all else in the storage's folder is not a volume. */
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

/** `<org_id>/<volume_id>`, the place of a volume in every storage. Throws on what is no identifier: it could leave the storage. */
export function volumeSubpath({ org_id, volume_id }: VolumeKey): string {
  if (!UUID.test(org_id) || !UUID.test(volume_id)) throw new Error(`not a volume: ${org_id}/${volume_id}`)
  return `${org_id}/${volume_id}`
}

/** The volume that lies in a place; null when it is not one of ours. */
export function parseVolumeSubpath(place: string): VolumeKey | null {
  const [org = '', volume = '', ...rest] = place.split('/')
  if (rest.length > 0 || !UUID.test(org) || !UUID.test(volume)) return null
  return { org_id: asId<OrgId>(org), volume_id: asId<VolumeId>(volume) }
}

/**
 * Gives a new volume to user 0 of the sandboxes. That user is never the machine's own, so that a volume which still
 * belongs to the machine was not finished; one that does not is left as its sandboxes have set it.
 */
export async function assignToSandboxRoot(folder: string, uidShift: number): Promise<void> {
  if (process.getuid?.() !== 0) return // only root can, and only root's sandboxes have users of their own
  if ((await stat(folder)).uid !== 0) return
  await chmod(folder, 0o755)
  await chown(folder, uidShift, uidShift)
}

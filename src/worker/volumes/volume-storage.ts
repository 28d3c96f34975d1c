import { chmod, chown, stat } from 'node:fs/promises'
import type { DesiredVolume, StorageReport, StoredVolume } from '../../contract/workers/worker-protocol.ts'
import { type OrgId, type VolumeId, asId } from '../../domain/ids.ts'

/** Identifies a volume. */
export type VolumeKey = { readonly org_id: OrgId; readonly volume_id: VolumeId }

/**
 * Where a worker keeps volumes. It keeps no state in memory but reads it from the system, so a restarted worker
 * continues where the last one stopped. Every method may be repeated.
 */
export interface VolumeStorage {
  readonly report: StorageReport
  /**
   * The folder of a volume on this machine, created when missing, with its caps enforced. It belongs to user 0 of the
   * sandboxes. Rejects for a cap that can't be enforced here.
   */
  open(volume: DesiredVolume): Promise<string>
  /** Applies the caps to an existing volume. A missing volume is fine. */
  applyCaps(volume: DesiredVolume): Promise<void>
  /** Deletes a volume with everything in it. Rejects while it is mounted; try again later. */
  remove(volume: VolumeKey): Promise<void>
  /** Every volume on this machine, with its disk usage. */
  measure(): Promise<readonly StoredVolume[]>
  /** Releases what no sandbox needs any more. */
  close(): Promise<void>
}

/** The names of the folders of organizations and volumes. Other names in the storage's folder are no volumes. */
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

/**
 * `<org_id>/<volume_id>`, the path of a volume in every storage. Throws for anything but UUIDs, which could lead out of
 * the storage.
 */
export function volumeSubpath({ org_id, volume_id }: VolumeKey): string {
  if (!UUID.test(org_id) || !UUID.test(volume_id)) throw new Error(`not a volume: ${org_id}/${volume_id}`)
  return `${org_id}/${volume_id}`
}

/** The volume at a path. Null when the path isn't a volume's. */
export function parseVolumeSubpath(subpath: string): VolumeKey | null {
  const [org = '', volume = '', ...rest] = subpath.split('/')
  if (rest.length > 0 || !UUID.test(org) || !UUID.test(volume)) return null
  return { org_id: asId<OrgId>(org), volume_id: asId<VolumeId>(volume) }
}

/**
 * Gives a new volume to user 0 of the sandboxes. That user is never root on the host, so a volume that belongs to root
 * is unfinished. A volume that doesn't keeps the owner and mode that its sandboxes have set.
 */
export async function assignToSandboxRoot(folder: string, uidShift: number): Promise<void> {
  if (process.getuid?.() !== 0) return // only root can change owners, and only root's sandboxes have users of their own
  if ((await stat(folder)).uid !== 0) return
  await chmod(folder, 0o755)
  await chown(folder, uidShift, uidShift)
}

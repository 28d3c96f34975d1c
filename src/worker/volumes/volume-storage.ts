import { chmod, chown, stat, type FileHandle } from 'node:fs/promises'
import type { DesiredVolume, StorageReport, StoredVolume } from '../../contract/workers/worker-protocol.ts'
import { type OrgId, type VolumeId, asId } from '../../domain/ids.ts'
import type { VolumePath } from '../../domain/volumes/volume-path.ts'

/** Identifies a volume. */
export type VolumeKey = { readonly org_id: OrgId; readonly volume_id: VolumeId }

/**
 * The volumes of a worker, wherever their files are. It reads its state from the system and keeps none in memory, so a restarted worker
 * continues where its predecessor stopped. Every method may be repeated.
 */
export interface WorkerVolumes {
  readonly report: StorageReport
  /** Applies the caps to an existing volume. Does nothing if this worker doesn't have the volume. */
  applyCaps(volume: DesiredVolume): Promise<void>
  /** Deletes a volume with everything in it. Rejects while the volume is mounted. The caller then tries again later. */
  remove(volume: VolumeKey): Promise<void>
  /** Lists every volume of this worker, with its disk usage. */
  measure(): Promise<readonly StoredVolume[]>
}

/** Volumes in folders of this machine. */
export interface VolumeStorage extends WorkerVolumes {
  /** The folder of all volumes. */
  readonly root: string
  /** Null if no folder can be limited here. */
  readonly folderLimits: FolderLimits | null
  /** Whether large files are written around the kernel's page cache, because that is faster here. */
  readonly hasDirectWrites: boolean
  /** What the volumes may take of the machine's disk before they are measured again. 0: nothing limits them. */
  promisedBytes(): number
  /**
   * Returns the folder of a volume on this machine and enforces its caps. Creates the volume when it is missing. A new
   * volume belongs to user 0 of the sandboxes. Rejects for a cap that can't be enforced here.
   */
  open(volume: DesiredVolume): Promise<string>
  /** Releases the resources of the storage that no running sandbox needs, such as an unused mount. */
  close(): Promise<void>
}

/** Limits folders within volumes. */
export type FolderLimits = {
  /** Runs `work`, which uses files of the volume by their paths. Meanwhile no folder gets its first limit. */
  using<T>(volume: VolumeKey, work: () => Promise<T>): Promise<T>
  /** Runs `work`, which mounts folders of the volume, while no other such work and no change of a folder's kind runs. */
  exclusively<T>(volume: VolumeKey, work: () => Promise<T>): Promise<T>
  /**
   * Makes sure that the folder at a path of the volume can have a limit. Creates it if it is missing, and
   * replaces it if it had no limit before. `root` is the volume's folder
   * on this machine. Rejects with `VolumeFileError`.
   */
  prepare(volume: VolumeKey, root: string, at: { readonly names: VolumePath; readonly path: string }): Promise<void>
  /**
   * Limits an open folder of the volume. Null lifts the limit. While the folder is mounted, a limit only gets smaller. Rejects with
   * `VolumeFileError` if the folder can have no limit.
   */
  set(
    volume: VolumeKey,
    held: FileHandle,
    limit: { readonly bytes: number | null; readonly path: string },
  ): Promise<void>
}

/** The pattern for names of organization and volume folders. Folders with other names are not volumes. */
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

/**
 * Returns `<org_id>/<volume_id>`, the path of a volume in every kind of storage. Throws if an id isn't a UUID, because
 * a path with such an id could lead out of the storage.
 */
export function volumeSubpath({ org_id, volume_id }: VolumeKey): string {
  if (!UUID.test(org_id) || !UUID.test(volume_id)) throw new Error(`not a volume: ${org_id}/${volume_id}`)
  return `${org_id}/${volume_id}`
}

/** Returns the volume at a path. Null when the path isn't the path of a volume. */
export function parseVolumeSubpath(subpath: string): VolumeKey | null {
  const [org = '', volume = '', ...rest] = subpath.split('/')
  if (rest.length > 0 || !UUID.test(org) || !UUID.test(volume)) return null
  return { org_id: asId<OrgId>(org), volume_id: asId<VolumeId>(volume) }
}

/**
 * Makes user 0 of the sandboxes the owner of a new volume. That user is never root on the host, so a volume that still
 * belongs to root is new. Any other volume keeps the owner and mode that its sandboxes have set.
 */
export async function assignToSandboxRoot(folder: string, uidShift: number): Promise<void> {
  if (process.getuid?.() !== 0) return // only root can change owners, and without root all sandboxes run as the worker's user
  if ((await stat(folder)).uid !== 0) return
  await chmod(folder, 0o755)
  await chown(folder, uidShift, uidShift)
}

import type { VolumeFile, VolumeFiles } from '../../../contract/volumes/volume-protocol.ts'
import type { RunVolume } from '../../../contract/workers/worker-protocol.ts'
import type { VolumeKey } from '../../volumes/volume-storage.ts'
import type { ApiObject } from '../../kubernetes/object-watch.ts'
import { LABELS } from './pod.ts'

/** How a claim may be mounted: by all Pods of one node, by one Pod, or by Pods of several nodes. */
export type AccessMode = 'ReadWriteOnce' | 'ReadWriteOncePod' | 'ReadWriteMany'

/** The claims that a worker makes. */
export type ClaimSettings = {
  readonly storageClass: string
  readonly mode: AccessMode
  readonly sizeGib: number
}

/** The parts of a PersistentVolumeClaim that the driver reads. */
export type PersistentVolumeClaim = ApiObject & {
  readonly metadata: ApiObject['metadata'] & {
    readonly labels?: Readonly<Record<string, string>>
    readonly deletionTimestamp?: string
  }
  readonly spec: {
    readonly accessModes: readonly string[]
    readonly resources: { readonly requests: { readonly storage: string } }
  }
  readonly status?: { readonly accessModes?: readonly string[]; readonly capacity?: { readonly storage?: string } }
}

/** The claim of a volume that a run mounts. */
export type RunClaim = {
  readonly volume: Pick<RunVolume, 'name' | 'volume_id'>
  readonly claimName: string
  /** Whether Pods of several nodes may mount it at once. */
  readonly isShared: boolean
  /** The node on which a Pod has it mounted. Null: none has, or any node may mount it. */
  readonly node: string | null
}

/** The files of a volume that only a Pod has mounted. */
export type ClaimFiles = VolumeFiles & {
  /**
   * Lists a folder for a copy, which has all of it. Rejects with `VolumeFileError`, also if the folder holds a FIFO, a socket or a device, or
   * a name that isn't UTF-8, which `list` leaves out.
   */
  listToCopy(path: string): Promise<FolderToCopy>
}

/** What is in a folder. */
export type FolderToCopy = {
  /** Its files and folders. */
  readonly files: readonly VolumeFile[]
  /** The targets of its symlinks, by their names. */
  readonly links: ReadonlyMap<string, string>
}

/** The group that owns the files of claims, and that sandboxes with claims belong to. */
export const CLAIM_GROUP = 1000

/** How many Pods may serve files of one organization's volumes at once. Its namespace allows so many beside those of sandboxes. */
export const FILES_PODS_PER_ORG = 4

/** The name of a volume's claim. The API server refuses a second claim of the name, so a volume never has two. */
export function claimNameOf(volume_id: string): string {
  return `sandyard-volume-${volume_id}`
}

/** The label of the Pods that mount a volume. */
export function volumeLabel(volume_id: string): string {
  return `${LABELS.volume}-${volume_id}`
}

/** Makes the claim of a volume. */
export function makeClaim({ org_id, volume_id }: VolumeKey, settings: ClaimSettings): object {
  return {
    apiVersion: 'v1',
    kind: 'PersistentVolumeClaim',
    metadata: { name: claimNameOf(volume_id), labels: { [LABELS.org]: org_id, [LABELS.volume]: volume_id } },
    spec: {
      accessModes: [settings.mode],
      storageClassName: settings.storageClass,
      volumeMode: 'Filesystem',
      resources: { requests: { storage: `${String(settings.sizeGib)}Gi` } },
    },
  }
}

/** How a claim may be mounted: as the volume behind it says, or as was asked for while it has none. */
export function modesOf({ spec, status }: PersistentVolumeClaim): readonly string[] {
  return status?.accessModes ?? spec.accessModes
}

import type { OrgId, VolumeId } from '../ids.ts'

/** A volume: files that outlive sandboxes. */
export type Volume = {
  readonly id: VolumeId
  readonly org_id: OrgId
  readonly kind: VolumeKind
  /** Null for the default volume. An organization has one default volume. */
  readonly name: string | null
  readonly status: VolumeStatus
  readonly labels: Readonly<Record<string, string>>
  /** The maximum size of its files, in GiB. Null: only the organization's limit applies. */
  readonly capacity_gib: number | null
  /** The size of its files by its worker's latest report. Null before the first report. */
  readonly used_bytes: number | null
  readonly created_at: Date
  readonly updated_at: Date
}

/**
 * `host`: the default volume of an organization; the sources of bind mounts are paths in it. `managed`: a volume that
 * clients create by name through the API.
 */
export const VOLUME_KINDS = ['host', 'managed'] as const
export type VolumeKind = (typeof VOLUME_KINDS)[number]
/** `deleting`: no sandbox can mount the volume any more. The volume is deleted with its files. */
export const VOLUME_STATUSES = ['active', 'deleting'] as const
export type VolumeStatus = (typeof VOLUME_STATUSES)[number]
export const VOLUME_STORAGES = ['block'] as const

export const BYTES_PER_GIB = 2 ** 30

/** The largest cap of a volume, in GiB. In bytes, the cap is still exact as a JSON number. */
export const CAPACITY_MAX_GIB = 2 ** 23 - 1

/**
 * The maximum number of managed volumes of an organization. The list of volumes has no pages, so it must stay short.
 */
export const VOLUMES_MAX = 10_000

const NAME_MAX_CHARS = 63

/** Describes a valid name of a managed volume. */
export const VOLUME_NAME_RULE = `1 to ${String(NAME_MAX_CHARS)} lowercase letters, digits and single hyphens, none at an end`

const NAME_SHAPE = /^[a-z0-9]+(?:-[a-z0-9]+)*$/

/** Whether a text is a valid name of a managed volume. */
export function isVolumeName(text: string): boolean {
  return text.length <= NAME_MAX_CHARS && NAME_SHAPE.test(text)
}

/** Converts a cap to bytes. Null, which means no cap, stays null. */
export function capacityBytes(capacityGib: number | null): number | null {
  return capacityGib === null ? null : capacityGib * BYTES_PER_GIB
}

/** Renders a volume as JSON text. */
export function renderVolume(volume: Volume): string {
  const { id, kind, name, status, labels, used_bytes, created_at, updated_at } = volume
  const [storage] = VOLUME_STORAGES
  const capacity_bytes = capacityBytes(volume.capacity_gib)
  return JSON.stringify({ id, kind, name, status, storage, labels, capacity_bytes, used_bytes, created_at, updated_at })
}

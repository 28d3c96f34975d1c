import type { OrgId, VolumeId } from '../ids.ts'

/** A volume: files that outlive sandboxes. */
export type Volume = {
  readonly id: VolumeId
  readonly org_id: OrgId
  readonly kind: VolumeKind
  /** Null for the host volume, of which an organization has one. */
  readonly name: string | null
  readonly status: VolumeStatus
  readonly labels: Readonly<Record<string, string>>
  /** The most it may hold, in GiB. Null: only the organization's limit applies. */
  readonly capacity_gib: number | null
  /** Its size by its worker's latest report; null before the first. */
  readonly used_bytes: number | null
  readonly created_at: Date
  readonly updated_at: Date
}

export const VOLUME_KINDS = ['host', 'managed'] as const
export type VolumeKind = (typeof VOLUME_KINDS)[number]
/** `deleting`: no sandbox can mount it any more, and it is deleted with its files. */
export const VOLUME_STATUSES = ['active', 'deleting'] as const
export type VolumeStatus = (typeof VOLUME_STATUSES)[number]
export const VOLUME_STORAGES = ['block'] as const

export const BYTES_PER_GIB = 2 ** 30

/** The largest cap, in GiB: JSON numbers are exact up to its bytes. */
export const CAPACITY_MAX_GIB = 2 ** 23 - 1

/** The most managed volumes of an organization. The list of volumes has no pages, so it must stay short. */
export const VOLUMES_MAX = 10_000

const NAME_MAX_CHARS = 63

/** Describes a valid name of a managed volume. */
export const VOLUME_NAME_RULE = `1 to ${String(NAME_MAX_CHARS)} lowercase letters, digits and single hyphens, none at an end`

const NAME_SHAPE = /^[a-z0-9]+(?:-[a-z0-9]+)*$/

/** Whether a text can be the name of a managed volume. */
export function isVolumeName(text: string): boolean {
  return text.length <= NAME_MAX_CHARS && NAME_SHAPE.test(text)
}

/** A cap in bytes. */
export function capacityBytes(capacityGib: number | null): number | null {
  return capacityGib === null ? null : capacityGib * BYTES_PER_GIB
}

/** A volume as JSON text. */
export function renderVolume(volume: Volume): string {
  const { id, kind, name, status, labels, used_bytes, created_at, updated_at } = volume
  const [storage] = VOLUME_STORAGES
  const capacity_bytes = capacityBytes(volume.capacity_gib)
  return JSON.stringify({ id, kind, name, status, storage, labels, capacity_bytes, used_bytes, created_at, updated_at })
}

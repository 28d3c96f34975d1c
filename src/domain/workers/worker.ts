import type { Ability } from '../abilities.ts'
import type { PublishRange } from './publishing.ts'

/** The total capacity of a worker for sandboxes, including the running ones. */
export type Capacity = {
  readonly vcpus: number
  readonly memory_mib: number
  /** How much the disks of all sandboxes may have together, the stopped ones included. Null: not limited. */
  readonly disk_mib: number | null
}

/** How a worker stores volumes, and which caps it enforces while sandboxes write. */
export type StorageReport = {
  /** Whether all workers that report true see the same volumes. */
  readonly is_shared: boolean
  /** Whether a volume can't outgrow its cap, and an organization's volumes can't outgrow their common cap. */
  readonly enforces_caps: boolean
  /** Whether clients can use the files of volumes without a sandbox. Absent: they can. */
  readonly serves_files?: boolean
  /** How the worker enforces caps, or why it can't, for people. */
  readonly how: string
}

/** A worker's report about its driver. */
export type DriverReport = {
  readonly name: string
  /** For people, such as `crun 1.8.1, user namespace, seccomp`. */
  readonly isolation: string
  readonly abilities: readonly Ability[]
  /** References of the images on the worker. */
  readonly images: readonly string[]
  /** The size of a disk for which a sandbox names no size. */
  readonly default_disk_mib: number
  /** The ports of its machine that sandboxes may publish. Absent: none. */
  readonly publishes?: readonly PublishRange[]
  /** Whether a sandbox that starts again finds its files. Absent: true. */
  readonly keeps_disks?: boolean
  /**
   * Whether runs go on without the worker, because another program runs them. They are then not declared lost while the worker
   * doesn't report. Absent: false.
   */
  readonly runs_outlive_worker?: boolean
}

/** A driver keeps disks unless its report says that it doesn't. */
export function abilitiesOf({
  abilities,
  keeps_disks,
}: Pick<DriverReport, 'keeps_disks'> & { readonly abilities: readonly string[] }): readonly string[] {
  return keeps_disks === false || abilities.includes('kept_disk') ? abilities : [...abilities, 'kept_disk']
}

/** Describes a valid name of a worker. Every host name is a valid name. */
export const WORKER_NAME_RULE =
  '1 to 63 letters, digits, dots, hyphens and underscores, with a letter or digit at both ends'

/** The states of a worker that was not removed. `joined`: it has not reported since it joined. `silent`: its lease is over. */
export const WORKER_STATES = ['joined', 'live', 'silent', 'draining'] as const
export type WorkerState = (typeof WORKER_STATES)[number]

/** The name of the worker inside `sandyard up`. A worker that joins can't have this name. */
export const LOCAL_WORKER_NAME = 'local'

const WORKER_NAME_SHAPE = /^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$/

/** Whether a text is a valid name for a worker that joins. */
export function isWorkerName(text: string): boolean {
  return WORKER_NAME_SHAPE.test(text) && text !== LOCAL_WORKER_NAME
}

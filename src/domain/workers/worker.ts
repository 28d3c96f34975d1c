import type { Ability } from '../abilities.ts'

/** What a worker offers to sandboxes in total, including those that run. */
export type Capacity = { readonly vcpus: number; readonly memory_mib: number; readonly disk_mib: number }

/** Where a worker keeps volumes, and which caps it enforces while sandboxes write. */
export type StorageReport = {
  /** Whether all workers that report true see the same volumes. */
  readonly is_shared: boolean
  /** Whether a volume can't outgrow its cap, nor an organization's volumes together their cap. */
  readonly enforces_caps: boolean
  /** How it enforces them, or why it can't, for people. */
  readonly how: string
}

/** What a worker reports of its driver. */
export type DriverReport = {
  readonly name: string
  /** For people, such as `crun 1.8.1, user namespace, seccomp`. */
  readonly isolation: string
  readonly abilities: readonly Ability[]
  /** References of the images that it has. */
  readonly images: readonly string[]
}

/** Describes a valid name of a worker: every host name is one. */
export const WORKER_NAME_RULE =
  '1 to 63 letters, digits, dots, hyphens and underscores, with a letter or digit at both ends'

/** The name of the worker inside `sandyard up`. No worker that joins may have it. */
export const LOCAL_WORKER_NAME = 'local'

const WORKER_NAME_SHAPE = /^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$/

/** Whether a text can be the name of a worker that joins. */
export function isWorkerName(text: string): boolean {
  return WORKER_NAME_SHAPE.test(text) && text !== LOCAL_WORKER_NAME
}

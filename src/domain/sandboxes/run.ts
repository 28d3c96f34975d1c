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

export type DriverReport = {
  readonly name: string
  /** Such as `crun 1.8.1, user namespace, seccomp`. Shown to people. */
  readonly isolation: string
  readonly abilities: readonly Ability[]
  /** References of the images that it has. */
  readonly images: readonly string[]
}

/** How a run ended. `message` is for people and holds no secret. */
export type RunOutcome =
  | { readonly kind: 'exited'; readonly code: number }
  | { readonly kind: 'signalled'; readonly signal: string }
  | { readonly kind: 'out_of_memory' }
  | { readonly kind: 'stopped' }
  | { readonly kind: 'start_failed'; readonly reason: StartFailure; readonly message: string }
  | { readonly kind: 'lost'; readonly message: string }

/** The reasons for which a driver's start can fail. */
export const START_FAILURES = [
  'image',
  'registry',
  'patch',
  'mount',
  'config',
  'network',
  'disk',
  'runtime',
  'host',
  'cancelled',
] as const
export type StartFailure = (typeof START_FAILURES)[number]

import type { Ability } from '../spec/abilities.ts'

/** What the worker can give to sandboxes in all, running ones included. */
export type Capacity = { readonly vcpus: number; readonly memory_mib: number; readonly disk_mib: number }

/** Where a worker keeps volumes, and what holds there while a sandbox writes. */
export type StorageReport = {
  /** Whether every worker that says so sees the same volumes. */
  readonly is_shared: boolean
  /** Whether a volume can't grow beyond its cap, nor an organization's volumes beyond theirs together. */
  readonly enforces_caps: boolean
  /** How it enforces them, or why it can't. For people. */
  readonly how: string
}

export type DriverReport = {
  readonly name: string
  /** Such as `crun 1.8.1, user namespace, seccomp`. Shown to people. */
  readonly isolation: string
  readonly abilities: readonly Ability[]
  /** References of the images that need no pull. */
  readonly images: readonly string[]
}

/** How a run ended. `message` is for people and carries no secret. */
export type RunOutcome =
  | { readonly kind: 'exited'; readonly code: number }
  | { readonly kind: 'signalled'; readonly signal: string }
  | { readonly kind: 'out_of_memory' }
  | { readonly kind: 'stopped' }
  | { readonly kind: 'start_failed'; readonly reason: StartFailure; readonly message: string }
  | { readonly kind: 'lost'; readonly message: string }

/** The closed set of kinds of error that a driver's start may fail with. */
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

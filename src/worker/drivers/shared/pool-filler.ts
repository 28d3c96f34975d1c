import type { Clock } from '../../../lib/clock.ts'
import { debounce } from '../../../lib/turns/debounce.ts'
import type { Log } from '../../../lib/log.ts'

/** Keeps pools of prepared resources full. Only one fill runs at a time. */
export type PoolFiller = {
  /** Fills the pools now. */
  fill(): void
  /** Fills the pools after the current burst of starts. */
  fillLater(): void
  /** Delays a fill of `fillLater`: a burst of starts is followed by one of first commands. */
  postpone(): void
  /** Prevents further fills, and waits for the fill in progress. */
  close(): Promise<void>
}

/**
 * `fillLater` waits until there was no start and no new channel for this long. Filling would take processor time from a burst of
 * them. `QUIET_LIMIT_MS` limits the wait.
 */
const QUIET_MS = 250
const QUIET_LIMIT_MS = 1_000

/** Creates a filler that does nothing until it is called. It logs a failed fill. */
export function makePoolFiller(
  pools: readonly { fillPool(): Promise<void> }[],
  { clock, log }: { readonly clock: Clock; readonly log: Log },
): PoolFiller {
  let current: Promise<void> | null = null
  const fillAll = async (): Promise<void> => {
    for (const pool of pools) await pool.fillPool()
  }
  const fill = (): void => {
    current ??= fillAll()
      .catch((error: unknown) => {
        log.warn({ error }, 'preparing disks, user namespaces and warm sandboxes for the next starts failed')
      })
      .finally(() => {
        current = null
      })
  }
  const later = debounce({ clock, delayMs: QUIET_MS, maxWaitMs: QUIET_LIMIT_MS, work: fill })
  return {
    fill,
    fillLater: () => {
      later.schedule()
    },
    postpone: () => {
      later.postpone()
    },
    async close() {
      later.close()
      await current
    },
  }
}

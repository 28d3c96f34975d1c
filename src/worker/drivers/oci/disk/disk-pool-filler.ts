import type { Clock } from '../../../../lib/clock.ts'
import { debounce } from '../../../../lib/debounce.ts'
import type { Log } from '../../../../lib/log.ts'
import type { SandboxDisks } from './sandbox-disks.ts'

/** Keeps the pool of formatted disks full. Only one fill runs at a time. */
export type DiskPoolFiller = {
  /** Fills the pool now. */
  fill(): void
  /** Fills the pool after the current burst of starts. */
  fillLater(): void
  /** Waits for the fill in progress. No other one follows. */
  close(): Promise<void>
}

/**
 * How long no start must have happened before the pool is filled. A start takes about 100 ms, and formatting would take
 * processor time from a burst of starts. The filler never waits longer than the limit below.
 */
const QUIET_MS = 250
const QUIET_LIMIT_MS = 1_000

/** Creates a filler that does nothing until it is called. It logs a failed fill. */
export function makeDiskPoolFiller(
  disks: Pick<SandboxDisks, 'fillPool'>,
  { clock, log }: { readonly clock: Clock; readonly log: Log },
): DiskPoolFiller {
  let current: Promise<void> | null = null
  const fill = (): void => {
    current ??= disks
      .fillPool()
      .catch((error: unknown) => {
        log.warn({ err: error }, 'formatting disks for the pool failed')
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
    async close() {
      later.close()
      await current
    },
  }
}

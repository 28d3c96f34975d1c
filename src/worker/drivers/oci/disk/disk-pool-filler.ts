import type { Clock } from '../../../../lib/clock.ts'
import { debounce } from '../../../../lib/debounce.ts'
import type { Log } from '../../../../lib/log.ts'
import type { SandboxDisks } from './sandbox-disks.ts'

/** Keeps the pool of formatted disks full, one round at a time. */
export type DiskPoolFiller = {
  /** Fills the pool now. */
  fill(): void
  /** Fills the pool after the current burst of starts. */
  fillLater(): void
  /** Waits for the round in progress; no other one follows. */
  close(): Promise<void>
}

/**
 * A start takes about 100 ms. Formatting during a burst of starts would take processor time from them, so the filler
 * waits until none came for this long, and never longer than the limit.
 */
const QUIET_MS = 250
const QUIET_LIMIT_MS = 1_000

/** Creates a filler that does nothing until it is asked. A round that fails is logged. */
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

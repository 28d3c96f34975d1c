import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { ImageStore } from './image-store.ts'

/** How often to trim. Reading the layers of 300 sandboxes takes milliseconds. */
const INTERVAL_MS = 5 * 60_000

/**
 * Trims the image store while the worker runs, first at once. A failure is logged. `close` ends the loop after the trim
 * in progress.
 */
export function startTrimLoop(
  images: Pick<ImageStore, 'trim'>,
  { clock, log }: { readonly clock: Clock; readonly log: Log },
): { close(): Promise<void> } {
  const stop = new AbortController()
  const run = async (): Promise<void> => {
    while (!stop.signal.aborted) {
      await images.trim().catch((error: unknown) => {
        log.warn({ err: error }, 'the image store could not be trimmed')
      })
      await interruptibleSleep(clock, INTERVAL_MS, stop.signal)
    }
  }
  const running = run()
  return {
    async close() {
      stop.abort()
      await running
    },
  }
}

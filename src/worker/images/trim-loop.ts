import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { repeat, type Repetition } from '../../lib/turns/repeat.ts'
import type { ImageStore } from './image-store.ts'

/** How often to trim. Reading the layers of 300 sandboxes takes milliseconds. */
const INTERVAL_MS = 5 * 60_000

/** Trims the image store while the worker runs, first at once. A failure is logged. */
export function startTrimLoop(
  images: Pick<ImageStore, 'trim'>,
  { clock, log }: { readonly clock: Clock; readonly log: Log },
): Repetition {
  return repeat(() => images.trim(), {
    pauseMs: INTERVAL_MS,
    clock,
    onFailure: (error) => {
      log.warn({ error }, 'the image store could not be trimmed')
    },
  })
}

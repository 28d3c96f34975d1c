import { setImmediate } from 'node:timers/promises'

/**
 * The size of a text or body from which work on it is spread over several turns of the event loop, in characters or bytes. Work on
 * a smaller one takes no longer than serving a usual request.
 */
export const LARGE_TEXT = 64 * 1024

/** Waits for the next turn of the event loop, so that other requests are served in between. */
export function nextTurn(): Promise<void> {
  return setImmediate()
}

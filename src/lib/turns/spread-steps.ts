import { setImmediate } from 'node:timers/promises'

/**
 * Creates what each step of some work waits for: one step begins in each turn of the event loop, so that other work is done in
 * between. A step that is alone begins at once.
 */
export function spreadSteps(): () => Promise<void> {
  let last = Promise.resolve()
  return () => {
    const before = last
    last = before.then(() => setImmediate())
    return before
  }
}

import { setTimeout as sleep } from 'node:timers/promises'
import { Problem } from '../../domain/problem.ts'

/** The delays are different, so that clients that were refused together don't all come back together. */
const STEPS = 16
/** Any odd number, so that successive refusals are far apart. */
const STRIDE = 7

/**
 * Creates a function that waits before a refusal for a limit is sent, for `delayMs` on average, and not at all for other errors. A client
 * that sends its next request as soon as it has the reply could otherwise keep the server busy with refusals.
 */
export function delayLimitRefusals(delayMs: number): (error: unknown) => Promise<void> {
  let step = 0
  return async (error) => {
    if (!(error instanceof Problem) || error.code !== 'rate_limited') return
    step = (step + STRIDE) % STEPS
    await sleep(delayMs * (0.5 + step / STEPS), undefined, { ref: false })
  }
}

import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { ApiError } from './api-error.ts'

const RETRY_MS = 500

type Persistence = { readonly signal: AbortSignal; readonly clock: Clock; readonly log: Log }

/**
 * Repeats a request while the API server can't be reached or has trouble of its own (429 and 5xx), until the signal aborts. Rejects with
 * any other answer.
 */
export async function persistRequest<Answer>(
  ask: () => Promise<Answer>,
  { signal, clock, log }: Persistence,
): Promise<Answer> {
  for (;;) {
    try {
      return await ask()
    } catch (error) {
      const isTheirs = error instanceof ApiError && error.status < 500 && error.status !== 429
      if (isTheirs || signal.aborted) throw error
      log.warn({ error }, 'a request to the API server failed; trying again')
      await clock.sleep(RETRY_MS, signal)
    }
  }
}

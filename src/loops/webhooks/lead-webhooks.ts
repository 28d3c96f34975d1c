import { interruptibleSleep } from '../../lib/clock.ts'
import type { Leadership } from '../leader-election.ts'
import { deliverWebhooks, type DeliverDeps } from './deliver-webhooks.ts'

/** The lead of what delivers to webhooks. It may be another process than the leader of the loops. */
export const WEBHOOKS_LEAD = 'webhooks'

/** The pause before a process asks for the leadership again, in milliseconds. */
const LEADERSHIP_RETRY_MS = 1_000

/** Delivers to webhooks whenever this process leads, until the signal aborts. */
export async function leadWebhooks(
  deps: Omit<DeliverDeps, 'fence'>,
  acquireLeadership: (signal: AbortSignal) => Promise<Leadership>,
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    try {
      await using leadership = await acquireLeadership(signal)
      await deliverWebhooks({ ...deps, fence: leadership.fence }, AbortSignal.any([signal, leadership.lost]))
    } catch (error) {
      if (!signal.aborted) deps.log.warn({ error }, 'could not deliver to webhooks; will retry')
    }
    await interruptibleSleep(deps.clock, LEADERSHIP_RETRY_MS, signal)
  }
}

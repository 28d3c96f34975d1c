import type { Clock } from '../../lib/clock.ts'
import { StartError } from '../start-error.ts'

/** A failure of the network or of an overloaded registry: the same request may succeed a moment later. */
export class TransientRegistryError extends StartError {}

/** Pauses before the second and the third attempt, in milliseconds; there is no fourth. */
const PAUSES_MS = [200, 1_000] as const

/** Repeats `attempt` while it fails with `TransientRegistryError`, at most three times in all. The last failure is thrown. */
export async function withRetries<T>(clock: Clock, signal: AbortSignal, attempt: () => Promise<T>): Promise<T> {
  for (const pauseMs of PAUSES_MS) {
    try {
      return await attempt()
    } catch (error) {
      if (!(error instanceof TransientRegistryError)) throw error
      await clock.sleep(pauseMs, signal).catch((reason: unknown) => {
        throw new StartError('cancelled', 'the pull was cancelled', reason)
      })
    }
  }
  return attempt()
}

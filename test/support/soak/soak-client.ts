import { randomBelow, systemRandom } from '../../../src/lib/random.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { assertReplyMatchesContract } from '../contract.ts'
import { exchange, type RequestParts, type Reply } from '../send.ts'
import type { OperationId } from '../../../src/contract/operations.ts'
import type { SoakTally } from './tally.ts'

/** How the clients of a soak reach the cloud: any of its processes, any of which may be away. */
export type SoakClient = {
  /**
   * Asks one of the processes. Null: no answer, or one that says that something is away just now, so that nobody knows what
   * was done. Every other answer is one that the contract allows, and no 500.
   */
  tryRequest(id: OperationId, asking?: RequestParts, key?: string): Promise<Reply | null>
  /** The same again and again until there is an answer; it must be harmless to repeat. Rejects after `REPLY_TIMEOUT_MS`. */
  requestUntilAnswered(id: OperationId, asking?: RequestParts, key?: string): Promise<Reply>
  readonly urls: readonly string[]
  readonly key: string
}

/** Longer than any fault of a soak lasts, the recovery with it. */
const PATIENCE_MS = 90_000
const PAUSE_MS = 100

/** Asks `urls` at random. */
export function makeSoakClient(urls: readonly string[], key: string, tally: SoakTally): SoakClient {
  const asker: SoakClient = {
    urls,
    key,
    async tryRequest(id, asking = {}, as = key) {
      const url = urls[randomBelow(systemRandom, urls.length)] ?? ''
      tally.count('requests')
      const reply = await answerOf(exchange(url, { id, key: as, asking }))
      if (reply === null) tally.count('connections that broke')
      if (reply === null) return null
      if (reply.status === 503 || reply.status === 502 || reply.status === 429) {
        tally.count('refused while something was away')
        if (reply.headers.get('retry-after') === null && reply.status !== 502)
          tally.breach(`${id} answered ${String(reply.status)} without Retry-After: ${reply.text}`)
        return null
      }
      if (reply.status >= 500) tally.breach(`${id} answered ${String(reply.status)}: ${reply.text}`)
      if (isJson(reply)) assertReplyMatchesContract(id, reply.status, JSON.parse(reply.text))
      return reply
    },
    async requestUntilAnswered(id, asking, as) {
      const deadlineMs = systemClock.monotonicMs() + PATIENCE_MS
      for (;;) {
        const reply = await asker.tryRequest(id, asking, as)
        if (reply !== null) return reply
        if (systemClock.monotonicMs() > deadlineMs) throw new Error(`${id} had no answer for ${String(PATIENCE_MS)} ms`)
        await systemClock.sleep(PAUSE_MS)
      }
    },
  }
  return asker
}

function isJson({ headers }: Reply): boolean {
  return headers.get('content-type')?.startsWith('application/json') === true
}

/** `fetch` rejects with a TypeError when a connection can't be had or breaks. */
async function answerOf(asked: Promise<Reply>): Promise<Reply | null> {
  try {
    return await asked
  } catch (error) {
    if (error instanceof TypeError) return null
    throw error
  }
}

import { randomBelow, systemRandom } from '../../../src/lib/random.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { assertReplyMatchesContract } from '../contract.ts'
import { exchange, type RequestParts, type Reply } from '../send.ts'
import type { OperationId } from '../../../src/contract/operations.ts'
import type { SoakTally } from './tally.ts'

/** Sends requests of a soak to any of the server processes, any of which may be down. */
export type SoakClient = {
  /**
   * Sends a request to one of the server processes. Resolves with null if there is no answer, or if the answer leaves
   * open whether the request was carried out. Asserts that every other answer fits our schemas and the published API
   * document.
   */
  tryRequest(id: OperationId, asking?: RequestParts, key?: string): Promise<Reply | null>
  /** Repeats a request, which must be safe to repeat, until there is an answer. Rejects after 90 s. */
  requestUntilAnswered(id: OperationId, asking?: RequestParts, key?: string): Promise<Reply>
  readonly urls: readonly string[]
  readonly key: string
}

/** How long a request is repeated: longer than any fault of a soak, including the recovery from it. */
const PATIENCE_MS = 90_000
const PAUSE_MS = 100

/** Makes a client that chooses among `urls` at random. */
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

/** `fetch` rejects with a TypeError when it gets no connection, or when the connection breaks. */
async function answerOf(asked: Promise<Reply>): Promise<Reply | null> {
  try {
    return await asked
  } catch (error) {
    if (error instanceof TypeError) return null
    throw error
  }
}

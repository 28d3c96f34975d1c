import assert from 'node:assert/strict'
import type { OperationId } from '../../src/contract/operations.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { randomBelow, systemRandom } from '../../src/lib/random.ts'
import { call } from './api.ts'
import { startLoad, type FaultLoad } from './fault-load.ts'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'
import type { ReplicaProcess } from './replica-world.ts'
import { waitUntil } from './wait.ts'

/** Clients that spread their requests over all server processes, those included that a test has just ended or stopped. */
export type ReplicaLoad = FaultLoad & {
  /** How many requests got no answer from a process that was down, and how many got one from one that was not. */
  readonly unanswered: number
  readonly answered: number
  /** From here on requests to it may stay without an answer. */
  noteDown(replica: ReplicaProcess): void
  /**
   * The same for one that will be stopped and go on. What it is asked now it does later, whatever happened meanwhile; so it is
   * asked to change no more sandboxes that are there, and this resolves once it changes none.
   */
  noteFrozen(replica: ReplicaProcess): Promise<void>
  noteUp(replica: ReplicaProcess): void
}

/** How long a client waits for an answer beyond its own wait for a sandbox: a proxy before it would do alike. */
const PATIENCE_MS = 4_000
/** The same where nothing is down. */
const LIMIT_MS = 30_000

const CHANGES: ReadonlySet<OperationId> = new Set(['start_sandbox', 'stop_sandbox', 'delete_sandbox'])

/** Starts the load. It fails by the first request to a process which is not down that gets no answer. */
export function startReplicaLoad(replicas: readonly ReplicaProcess[], clients: number): ReplicaLoad {
  const [first] = replicas
  assert.ok(first)
  const down = new Set<ReplicaProcess>()
  /** How often each was down: what was under way as one went down may have stayed without an answer as well. */
  const downs = new Map<ReplicaProcess, number>()
  /** What changes sandboxes that are there: how many such requests are under way at each. */
  const changing = new Map(replicas.map((replica) => [replica, 0]))
  const frozen = new Set<ReplicaProcess>()
  let unanswered = 0
  let answered = 0

  const send: typeof call = async (_to, id, asking = {}) => {
    const isChange = CHANGES.has(id)
    const asked = isChange ? replicas.filter((replica) => !frozen.has(replica)) : replicas
    const replica = asked[randomBelow(systemRandom, asked.length)] ?? first
    const count = (step: number): unknown => isChange && changing.set(replica, (changing.get(replica) ?? 0) + step)
    const before = downs.get(replica)
    const isDown = (): boolean => down.has(replica) || downs.get(replica) !== before
    const ending = new AbortController()
    const fromMs = systemClock.monotonicMs()
    const timer = setInterval(() => {
      const tookMs = systemClock.monotonicMs() - fromMs
      if (tookMs > (isDown() ? PATIENCE_MS : LIMIT_MS) * TIMEOUT_FACTOR) ending.abort(new Error('no answer in time'))
    }, 100)
    count(1)
    try {
      const answer = await call(replica, id, { ...asking, signal: ending.signal })
      answered += 1
      return answer
    } catch (error) {
      if (error instanceof assert.AssertionError) throw error
      assert.ok(isDown(), `${id} got no answer from ${replica.url}, which is not down: ${String(error)}`)
      unanswered += 1
      return NO_ANSWER
    } finally {
      count(-1)
      clearInterval(timer)
    }
  }
  const noteDown = (replica: ReplicaProcess): void => {
    down.add(replica)
    downs.set(replica, (downs.get(replica) ?? 0) + 1)
  }

  const load = startLoad(first, clients, send)
  return {
    ...load,
    get slowestMs() {
      return load.slowestMs
    },
    get hasFailed() {
      return load.hasFailed
    },
    get unanswered() {
      return unanswered
    },
    get answered() {
      return answered
    },
    noteDown,
    async noteFrozen(replica) {
      frozen.add(replica)
      await waitUntil(() => changing.get(replica) === 0, LIMIT_MS)
      noteDown(replica)
    },
    noteUp(replica) {
      down.delete(replica)
      frozen.delete(replica)
    },
  }
}

/** What such a client knows then is what it knows after a 503: nothing. */
const ERROR = { code: 'unavailable', message: 'no answer', details: null } as const
const NO_ANSWER = {
  status: 503,
  headers: new Headers({ 'retry-after': '1' }),
  text: JSON.stringify({ error: ERROR }),
  isRefusal: true,
  body: { error: ERROR },
} as const

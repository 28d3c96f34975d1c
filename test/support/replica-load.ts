import assert from 'node:assert/strict'
import type { OperationId } from '../../src/contract/operations.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { randomBelow, systemRandom } from '../../src/lib/random.ts'
import { call } from './api.ts'
import { startLoad, type FaultLoad } from './fault-load.ts'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'
import type { ReplicaProcess } from './replica-world.ts'
import { waitUntil } from './wait.ts'

/**
 * Clients that spread their requests over all server processes, including processes that a test has killed or frozen.
 */
export type ReplicaLoad = FaultLoad & {
  /** The number of requests without an answer. All went to processes that were down; any other one fails the load. */
  readonly unanswered: number
  readonly answered: number
  /** Records that a process is down: requests to it may stay unanswered until `noteUp`. */
  noteDown(replica: ReplicaProcess): void
  /**
   * Like `noteDown`, for a process that is about to be frozen. When it continues, it would carry out requests that it
   * received before. The clients therefore send it no more changes of existing sandboxes. Resolves when no such change
   * is in flight.
   */
  noteFrozen(replica: ReplicaProcess): Promise<void>
  noteUp(replica: ReplicaProcess): void
}

/** How long a client waits for an answer of a process that is down. A proxy has a similar limit. */
const PATIENCE_MS = 4_000
/** How long a client waits for an answer of a process that is up. */
const LIMIT_MS = 30_000

const CHANGES: ReadonlySet<OperationId> = new Set(['start_sandbox', 'stop_sandbox', 'delete_sandbox'])

/** Starts the load. It fails at the first unanswered request to a process that is up. */
export function startReplicaLoad(replicas: readonly ReplicaProcess[], clients: number): ReplicaLoad {
  const [first] = replicas
  assert.ok(first)
  const down = new Set<ReplicaProcess>()
  /** How many times each process went down. A request that was in flight at that time may stay unanswered. */
  const downs = new Map<ReplicaProcess, number>()
  /** For each process, the number of requests in flight that change existing sandboxes. */
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

/** The clients treat a missing answer like a 503, which also leaves open whether the request was carried out. */
const ERROR = { code: 'unavailable', message: 'no answer', details: null } as const
const NO_ANSWER = {
  status: 503,
  headers: new Headers({ 'retry-after': '1' }),
  text: JSON.stringify({ error: ERROR }),
  isRefusal: true,
  body: { error: ERROR },
} as const

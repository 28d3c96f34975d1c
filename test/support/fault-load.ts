/** Clients of a server whose database fails. They record which states of their sandboxes the replies leave possible. */
import assert from 'node:assert/strict'
import { systemClock } from '../../src/lib/clock.ts'
import { randomBelow, systemRandom } from '../../src/lib/random.ts'
import { call, type SandboxBody } from './api.ts'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'
import { DEMO_IMAGE } from './sdk.ts'
import type { RealServer } from './server.ts'

/**
 * The state that a client expects of a sandbox. After a refusal that may come too late, several states are possible.
 */
export type ExpectedState = 'absent' | 'created' | 'running' | 'stopped'
export type ExpectedSandbox = { readonly name: string; id: string | null; possible: ReadonlySet<ExpectedState> }

export type FaultLoad = {
  readonly expected: readonly ExpectedSandbox[]
  /** The number of answered requests by HTTP status. */
  readonly answers: ReadonlyMap<number, number>
  /** The longest time until an answer, without the time for which a request waited for a sandbox. */
  readonly slowestMs: number
  /** Whether a client got an answer that is not allowed. If so, `stop` rejects with the reason. */
  readonly hasFailed: boolean
  /** Stops the clients once each has finished its request. Rejects with the first failure of a client. */
  stop(): Promise<void>
}

/**
 * The time limit of a request, whatever the database does: 5 s for a connection, 10 s for a blocked statement, and 15 s
 * because the machine is busy.
 */
const REQUEST_LIMIT_MS = 30_000 * TIMEOUT_FACTOR
const WAIT_SECS = 2
/** The maximum number of sandboxes that one client has at a time. */
const MAX_LIVE_SANDBOXES = 6
/** By then, the server's line about a request has reached this process. */
const LOG_MS = 200
/** The pause of a client after a refusal, which is shorter than `Retry-After` asks for. */
const REST_MS = 20

/** The server under load, and its log, which a failure shows. */
type LoadedServer = Pick<RealServer, 'url' | 'key'> & Partial<Pick<RealServer, 'output'>>

/**
 * Starts clients that send random requests until they are stopped: create, start with and without waiting, stop,
 * delete, get and list. `send` replaces `call`, which sends a request to the server.
 */
export function startLoad(server: LoadedServer, clients = 6, send: typeof call = call): FaultLoad {
  const expected: ExpectedSandbox[] = []
  const answers = new Map<number, number>()
  const ended = new AbortController()
  let slowestMs = 0

  const ask: typeof call = async (to, id, asking) => {
    const fromMs = systemClock.monotonicMs()
    const answer = await send(to, id, asking)
    const tookMs =
      systemClock.monotonicMs() - fromMs - (asking?.query?.['wait_for'] === undefined ? 0 : WAIT_SECS * 1000)
    slowestMs = Math.max(slowestMs, tookMs)
    answers.set(answer.status, (answers.get(answer.status) ?? 0) + 1)
    assert.ok(tookMs < REQUEST_LIMIT_MS, `${id} took ${String(Math.round(tookMs))} ms: ${answer.text}`)
    if (answer.isRefusal) await meetRefusal(server, id, answer)
    return answer
  }

  const live = async (): Promise<void> => {
    const own: ExpectedSandbox[] = []
    while (!ended.signal.aborted) await ACTS[randomBelow(systemRandom, ACTS.length)]?.({ server, ask, own, expected })
  }
  const lives = Promise.all(Array.from({ length: clients }, live))
  let hasFailed = false
  lives.catch(() => {
    hasFailed = true
    ended.abort() // the first client that fails ends all clients
  })
  return {
    expected,
    answers,
    get slowestMs() {
      return slowestMs
    },
    get hasFailed() {
      return hasFailed
    },
    async stop() {
      ended.abort()
      await lives
    },
  }
}

/**
 * Asserts that a refusal is 503 with its code and `Retry-After`, or 404 or 409, because an earlier request with an
 * unknown result may have changed the sandbox. On a fast machine, the clients meet the rate limit of their key too.
 */
async function meetRefusal(server: LoadedServer, id: string, answer: Awaited<ReturnType<typeof call>>): Promise<void> {
  const told = `${id} was answered ${String(answer.status)} ${answer.text}`
  if (answer.status === 503 || answer.status === 429) {
    assert.match(answer.text, answer.status === 429 ? /"limit":"key_requests_per_sec"/ : /"code":"unavailable"/, told)
    assert.match(answer.headers.get('retry-after') ?? '', /^\d+$/, told)
    await systemClock.sleep(REST_MS)
  } else if (answer.status !== 409 && answer.status !== 404) {
    await systemClock.sleep(LOG_MS)
    assert.fail(`${told}\n${logOf(server, answer.text)}`)
  }
}

/** What the server logged about the request of this answer. */
function logOf({ output }: LoadedServer, answer: string): string {
  const id = /"request_id":"([^"]+)"/.exec(answer)?.[1]
  if (id === undefined || output === undefined) return 'its log is not known'
  return output()
    .split('\n')
    .filter((line) => line.includes(id))
    .join('\n')
}

type Act = (client: {
  readonly server: Pick<RealServer, 'url' | 'key'>
  readonly ask: typeof call
  readonly own: ExpectedSandbox[]
  readonly expected: ExpectedSandbox[]
}) => Promise<void>

const create: Act = async ({ server, ask, own, expected }) => {
  if (own.filter(({ possible }) => !isOnly(possible, 'absent')).length >= MAX_LIVE_SANDBOXES) return
  const one: ExpectedSandbox = {
    name: `load-${systemRandom.bytes(6).toString('hex')}`,
    id: null,
    possible: new Set(['absent']),
  }
  own.push(one)
  expected.push(one)
  await createNamed(server, ask, one)
}

/** Creates a sandbox by name. If an earlier create may have succeeded, accepts the conflict with that sandbox. */
export async function createNamed(
  server: Pick<RealServer, 'url' | 'key'>,
  ask: typeof call,
  one: ExpectedSandbox,
): Promise<void> {
  const kind = randomBelow(systemRandom, 3)
  const wanted: ExpectedState = kind === 0 ? 'created' : 'running'
  const query: Record<string, string> = kind === 0 ? {} : { start: 'true', ...(kind === 1 ? WAITING : {}) }
  const body = { name: one.name, image: DEMO_IMAGE, resources: { vcpus: 1, memory_mib: 64, disk_size_mib: 64 } }
  const before = one.possible
  one.possible = new Set([...before, wanted])
  const answer = await ask(server, 'create_sandbox', { query, body })
  if (!answer.isRefusal) {
    assert.ok(before.has('absent'), `${one.name} was there and was created again`)
    one.id = answer.body.id
    one.possible = new Set([wanted])
  } else if (answer.status === 409) {
    assert.ok(
      [...before].some((state) => state !== 'absent'),
      `${one.name} exists, but no create of it can have succeeded: ${answer.text}`,
    )
    one.possible = new Set([...before].filter((state) => state !== 'absent'))
  } else if (answer.status === 429) {
    one.possible = before // a request beyond the limit is not carried out
  } else assert.equal(answer.status, 503, answer.text)
}

const WAITING = { wait_for: 'running', wait_timeout: String(WAIT_SECS) } as const

const CHANGES = { start_sandbox: 'running', stop_sandbox: 'stopped', delete_sandbox: 'absent' } as const

const change: Act = async ({ server, ask, own }) => {
  const live = own.filter(({ id, possible }) => id !== null && !isOnly(possible, 'absent'))
  const one = live[randomBelow(systemRandom, Math.max(1, live.length))]
  if (one?.id === undefined || one.id === null) return
  const id =
    (['start_sandbox', 'stop_sandbox', 'delete_sandbox'] as const)[randomBelow(systemRandom, 3)] ?? 'stop_sandbox'
  const before = one.possible
  one.possible = new Set([...before, CHANGES[id]])
  const query: Record<string, string> = id === 'start_sandbox' && randomBelow(systemRandom, 2) === 0 ? WAITING : {}
  const answer = await ask(server, id, { params: { sandbox_id: one.id }, query })
  if (!answer.isRefusal) one.possible = new Set([CHANGES[id]])
  else if (answer.status === 404) {
    assert.ok(before.has('absent'), `${one.name} is acknowledged and was answered 404`)
    one.possible = new Set(['absent'])
  } else if (answer.status === 409) one.possible = before
}

const get: Act = async ({ server, ask, own }) => {
  const one = own[randomBelow(systemRandom, Math.max(1, own.length))]
  if (one?.id === undefined || one.id === null) return
  const answer = await ask(server, 'get_sandbox', { params: { sandbox_id: one.id } })
  if (answer.status === 404) assert.ok(one.possible.has('absent'), `${one.name} is acknowledged and was answered 404`)
}

const list: Act = async ({ server, ask }) => void (await ask(server, 'list_sandboxes', { query: { limit: '50' } }))

const ACTS: readonly Act[] = [create, create, change, change, get, get, list]

/** Whether this is the only possible state of a sandbox. */
export function isOnly(possible: ReadonlySet<ExpectedState>, state: ExpectedState): boolean {
  return possible.size === 1 && possible.has(state)
}

/** The status of a sandbox in a reply, or `absent` without a sandbox. */
export function observedState(found: SandboxBody | undefined): string {
  return found?.status ?? 'absent'
}

import { Agent, type ClientRequestArgs } from 'node:http'
import type { Duplex } from 'node:stream'
import type { Clock } from '../lib/clock.ts'
import type { Pace } from '../lib/turns/piece-pacer.ts'
import { paceReplies } from './pace-replies.ts'

type ConnectionsInput<Sandbox> = {
  /** Opens a connection to a port of a sandbox. */
  readonly connect: (sandbox: Sandbox, port: number) => Promise<Duplex>
  readonly clock: Clock
  /** The pace at which replies of a sandbox are read. */
  readonly paceOf: (sandbox: Sandbox) => Pace
}

/** Connections into sandboxes. Those that are idle wait for the next request to the same port. */
export type SandboxConnections<Sandbox> = {
  /** The agent for HTTP requests to a sandbox. Null: the sandbox has too many requests. Call `release` when the request has ended. */
  use(sandbox: Sandbox): { readonly agent: Agent; readonly release: () => void } | null
  close(): void
}

/** The maximum number of requests of a sandbox that are under way, those that wait for a connection included. */
const IN_FLIGHT_MAX = 512
/** The maximum number of connections to one port. Further requests wait. */
const SOCKETS_MAX = 64
/**
 * How many idle connections to one port are kept: all. Fewer would close some of those that 32 clients use in turn, and opening one
 * starts a process in the sandbox: 1,700 instead of 5,400 requests a second (2026-11, 2 cores).
 */
const IDLE_SOCKETS = 64
/** How long connections to a sandbox stay open without a request. */
const IDLE_MS = 30_000
const SWEEP_MS = 5_000

type Entry = { readonly agent: Agent; inFlight: number; usedAtMs: number }

/** Makes the connections of a process. */
export function makeSandboxConnections<Sandbox extends { readonly run: string }>({
  connect,
  clock,
  paceOf,
}: ConnectionsInput<Sandbox>): SandboxConnections<Sandbox> {
  const entries = new Map<string, Entry>()
  const sweep = setInterval(() => {
    const beforeMs = clock.monotonicMs() - IDLE_MS
    for (const [run, entry] of entries) {
      if (entry.inFlight > 0 || entry.usedAtMs > beforeMs) continue
      entries.delete(run)
      entry.agent.destroy()
    }
  }, SWEEP_MS)
  sweep.unref()
  return {
    use(sandbox) {
      const made = (): Entry => ({
        agent: new SandboxAgent(async (port) => {
          const connection = await connect(sandbox, port)
          paceReplies(connection, paceOf(sandbox))
          return connection
        }),
        inFlight: 0,
        usedAtMs: clock.monotonicMs(),
      })
      const entry = entries.get(sandbox.run) ?? made()
      entries.set(sandbox.run, entry)
      if (entry.inFlight >= IN_FLIGHT_MAX) return null
      entry.inFlight += 1
      let isReleased = false
      return {
        agent: entry.agent,
        release() {
          if (isReleased) return
          isReleased = true
          entry.inFlight -= 1
          entry.usedAtMs = clock.monotonicMs()
        },
      }
    },
    close() {
      clearInterval(sweep)
      for (const { agent } of entries.values()) agent.destroy()
      entries.clear()
    },
  }
}

/** An agent whose connections lead into one sandbox. */
class SandboxAgent extends Agent {
  readonly #connect: (port: number) => Promise<Duplex>
  constructor(connect: (port: number) => Promise<Duplex>) {
    super({ keepAlive: true, maxSockets: SOCKETS_MAX, maxFreeSockets: IDLE_SOCKETS })
    this.#connect = connect
  }
  override createConnection(
    { port }: ClientRequestArgs,
    callback?: (error: Error | null, stream: Duplex) => void,
  ): undefined {
    void this.#open(Number(port), callback)
  }
  async #open(port: number, callback?: (error: Error | null, stream: Duplex) => void): Promise<void> {
    let stream: Duplex
    try {
      stream = asSocket(await this.#connect(port))
    } catch (error) {
      const cause = error instanceof Error ? error : new Error('no connection', { cause: error })
      callback?.(cause, undefined as never) // Node reads the error alone
      return
    }
    callback?.(null, stream)
  }
}

/** Adds what Node's HTTP client calls on a socket of the system. */
function asSocket(stream: Duplex): Duplex {
  const same = (): Duplex => stream
  return Object.assign(stream, { setKeepAlive: same, setNoDelay: same, setTimeout: same, ref: same, unref: same })
}

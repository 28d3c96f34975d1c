import { clearTimeout as clearTimer, setTimeout as setTimer } from 'node:timers'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '../../lib/log.ts'
import { openConnection, type Connection, type ConnectionOptions } from './connection.ts'
import { DatabaseUnavailable, isOutOfConnections } from './database-errors.ts'

/** A connection of a pool, as it is lent to one user at a time. */
export type PooledConnection = Connection & {
  /** The value of the setting `sandyard.org` that it has; null: not known. */
  scope: string | null
  /** It is in a state that nobody knows, or gone: it is closed when it is given back. */
  isBroken: boolean
}

/**
 * Connections that are kept open and lent out, first come, first served. While the server can't be reached every request is
 * refused at once, none waits and nothing piles up; the pool itself tries until the server is back.
 */
export interface ConnectionPool {
  /** Rejects with `DatabaseUnavailable`: at once while the database is away or when too many wait, else after `ACQUIRE_TIMEOUT_MS`. */
  acquire(): Promise<PooledConnection>
  release(connection: PooledConnection): void
  /** The server answered a statement: it is not away. */
  recordAnswer(): void
  /** A connection fell silent: those that nobody uses may be as dead, and are closed. */
  recordSilence(): void
  /** Gives up a connection, unless it is the only one: another pool has none, and the server has no more. */
  shedOne(): void
  /** Why everything is refused now, or null. */
  readonly outage: Error | null
  /** Waits for what is lent and closes everything. May be repeated. */
  close(): Promise<void>
}

export type ConnectionPoolOptions = {
  readonly name: string
  readonly connection: ConnectionOptions
  /** The most connections. It works with fewer, down to one, where the server has no more. */
  readonly max: number
  readonly log: Log
  /** Called when the server has no connection for a pool that has none. */
  readonly onServerFull: () => void
}

/** How long a request waits for a connection, new or given back. */
const ACQUIRE_TIMEOUT_MS = 5_000
/** The most requests that wait; 20 connections serve some thousands in a second. */
const MAX_WAITERS = 4_096
/** How long an unused connection stays open. */
const IDLE_MS = 60_000
/** So many stay open unused: on a server whose connections others take, they are what there is to go on with. */
const MIN_IDLE = 2
/** The pause before the next attempt to reach a server that is away: doubled after each failure. */
const FIRST_RETRY_MS = 100
const LAST_RETRY_MS = 1_000
/** After a refused connection, or after one was spared, so long no more are asked for. */
const GROWTH_PAUSE_MS = 1_000

type Waiter = {
  readonly resolve: (connection: PooledConnection) => void
  readonly reject: (error: DatabaseUnavailable) => void
  readonly limit: NodeJS.Timeout
}

/** Makes an empty pool; it connects when it is first asked. */
export function makeConnectionPool(options: ConnectionPoolOptions): ConnectionPool {
  const { max, log } = options
  const idle = new Map<PooledConnection, NodeJS.Timeout>()
  const waiting = new Set<Waiter>()
  const ends = new Set<Promise<void>>()
  const closed = new AbortController()
  const drained = Promise.withResolvers<void>()
  let size = 0 // those being opened included
  let connecting = 0
  let answers = 0
  let away: Error | null = null
  let isGrowthPaused = false
  let mustShed = false

  async function connect(): Promise<void> {
    size += 1
    connecting += 1
    try {
      const made: { connection: PooledConnection | null } = { connection: null }
      const opened = await openConnection(options.connection, (error) => {
        if (made.connection !== null) onLost(made.connection, error)
      })
      connecting -= 1
      made.connection = Object.assign(opened, { scope: null, isBroken: false })
      recordAnswer()
      handOver(made.connection)
    } catch (error) {
      connecting -= 1
      discount()
      onConnectFailed(error instanceof Error ? error : new Error(String(error)))
    }
  }

  function onConnectFailed(error: Error): void {
    if (closed.signal.aborted || size > connecting) return pauseGrowth()
    if (isOutOfConnections(error)) options.onServerFull()
    if (connecting === 0) beginOutage(error)
  }

  function pauseGrowth(): void {
    if (isGrowthPaused || closed.signal.aborted) return
    isGrowthPaused = true
    setTimer(() => {
      isGrowthPaused = false
      grow()
    }, GROWTH_PAUSE_MS).unref()
  }

  function grow(): void {
    if (isGrowthPaused || away !== null || closed.signal.aborted) return
    while (size < max && connecting < waiting.size) void connect() // it never rejects
  }

  function beginOutage(cause: Error): void {
    if (away !== null || closed.signal.aborted) return
    away = cause
    log.warn({ error: cause, pool: options.name }, 'the database is away: what needs it is refused until it is back')
    refuseWaiting(new DatabaseUnavailable(AWAY, { cause }))
    dropIdle()
    void reconnect() // it never rejects
  }

  async function reconnect(): Promise<void> {
    for (let pauseMs = FIRST_RETRY_MS; away !== null; pauseMs = Math.min(pauseMs * 2, LAST_RETRY_MS)) {
      await pause(pauseMs, closed.signal)
      if (closed.signal.aborted) return
      if (away !== null) await connect()
    }
  }

  function recordAnswer(): void {
    answers += 1
    if (away === null) return
    away = null
    log.warn({ pool: options.name }, 'the database is back')
  }

  function refuseWaiting(error: DatabaseUnavailable): void {
    for (const { reject, limit } of waiting) {
      clearTimer(limit)
      reject(error)
    }
    waiting.clear()
  }

  /** To who waits longest, or among the unused. */
  function handOver(connection: PooledConnection): void {
    if (connection.isBroken || closed.signal.aborted) return drop(connection)
    const [waiter] = waiting
    if (waiter !== undefined) {
      waiting.delete(waiter)
      clearTimer(waiter.limit)
      waiter.resolve(connection)
    } else if (size > max) drop(connection)
    else keepIdle(connection)
  }

  function keepIdle(connection: PooledConnection): void {
    const expire = (): void => (size > MIN_IDLE ? drop(connection) : keepIdle(connection))
    idle.set(connection, setTimer(expire, IDLE_MS).unref())
  }

  function drop(connection: PooledConnection): void {
    forget(connection)
    const end = connection.close().finally(() => ends.delete(end))
    ends.add(end)
    discount()
    grow()
  }

  function forget(connection: PooledConnection): void {
    clearTimer(idle.get(connection))
    idle.delete(connection)
  }

  function dropIdle(): void {
    for (const connection of idle.keys()) drop(connection)
  }

  function discount(): void {
    size -= 1
    if (size === 0 && closed.signal.aborted) drained.resolve()
  }

  function onLost(connection: PooledConnection, error: Error): void {
    connection.isBroken = true // the statement under way, or the next one, reports it
    if (!idle.has(connection)) return
    log.warn({ error }, 'an idle database connection was lost')
    drop(connection)
  }

  return {
    async acquire() {
      if (closed.signal.aborted) throw new DatabaseUnavailable('the database is closed')
      if (away !== null) throw new DatabaseUnavailable(AWAY, { cause: away })
      const ready = [...idle.keys()].at(-1)
      if (ready !== undefined) {
        forget(ready)
        return ready
      }
      if (waiting.size >= MAX_WAITERS) throw new DatabaseUnavailable('too many wait for a connection to the database')
      return new Promise((resolve, reject) => {
        const answersBefore = answers
        const giveUp = (): void => {
          waiting.delete(waiter)
          reject(new DatabaseUnavailable('no connection to the database came free in time'))
          if (answers === answersBefore) beginOutage(new Error('the database gives no answer'))
        }
        const waiter = { resolve, reject, limit: setTimer(giveUp, ACQUIRE_TIMEOUT_MS) }
        waiting.add(waiter)
        grow()
      })
    },
    release(connection) {
      if (!mustShed) return handOver(connection)
      mustShed = false
      drop(connection)
    },
    recordAnswer,
    recordSilence: dropIdle,
    shedOne() {
      if (size - connecting <= 1) return
      pauseGrowth()
      const [unused] = idle.keys()
      if (unused === undefined) mustShed = true
      else drop(unused)
    },
    get outage() {
      return away
    },
    async close() {
      closed.abort()
      refuseWaiting(new DatabaseUnavailable('the database is closed'))
      dropIdle()
      if (size > 0) await drained.promise
      await Promise.all(ends)
    },
  }
}

const AWAY = 'the database is away'

async function pause(ms: number, signal: AbortSignal): Promise<void> {
  try {
    await sleep(ms, undefined, { signal, ref: false })
  } catch (error) {
    if (!signal.aborted) throw error
  }
}

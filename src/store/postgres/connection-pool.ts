import { clearTimeout as clearTimer, setTimeout as setTimer } from 'node:timers'
import { interruptibleSleep, systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { openConnection, type Connection, type ConnectionOptions } from './connection.ts'
import { DatabaseUnavailable, isOutOfConnections } from './database-errors.ts'

/** A connection of a pool; it has one user at a time. */
export type PooledConnection = Connection & {
  /** The connection's value of the setting `sandyard.org`. Null if it is unknown. */
  scope: string | null
  /** Whether the connection is lost or in an unknown state. Such a connection is closed on release. */
  isBroken: boolean
}

/**
 * A pool of connections, first come, first served. During an outage every `acquire` rejects at once, so that no calls
 * pile up. The pool reconnects on its own when the server is back.
 */
export interface ConnectionPool {
  /**
   * Acquires a connection. Rejects with `DatabaseUnavailable` at once during an outage or when too many callers wait.
   * Otherwise it rejects after `ACQUIRE_TIMEOUT_MS`.
   */
  acquire(): Promise<PooledConnection>
  release(connection: PooledConnection): void
  /** Reports that the server answered a statement, which ends an outage. */
  recordAnswer(): void
  /** Reports that a connection got no answer. Idle connections may be dead as well, so the pool closes them. */
  recordSilence(): void
  /**
   * Closes one connection, unless the pool has only one. Call this when another pool has no connection and the server
   * accepts no more.
   */
  shedOne(): void
  /** The error that shows why the server can't be reached now. Null: there is no outage. */
  readonly outage: Error | null
  readonly use: ConnectionPoolUse
  /** Waits until all connections are released, then closes them. May be repeated. */
  close(): Promise<void>
}

/** What a pool does now, and the calls of `acquire` that it has rejected so far, by why. */
export type ConnectionPoolUse = {
  readonly name: string
  readonly max: number
  readonly inUse: number
  readonly idle: number
  readonly connecting: number
  readonly waiting: number
  readonly isAway: boolean
  readonly rejected: Readonly<Record<AcquireFailure, number>>
}

/** `outage`: the server can't be reached. `timeout`: no connection became free in time. `queue_full`: too many wait. */
export type AcquireFailure = 'outage' | 'timeout' | 'queue_full'

export type ConnectionPoolOptions = {
  readonly name: string
  readonly connection: ConnectionOptions
  /** The maximum number of connections. If the server has no more left, the pool works with fewer, down to one. */
  readonly max: number
  readonly log: Log
  /** Called when this pool has no connection and the server has none left. */
  readonly onServerFull: () => void
}

/** How long a caller waits for a connection, in milliseconds. */
const ACQUIRE_TIMEOUT_MS = 5_000
/** The maximum number of callers that wait for a connection. 20 connections serve some thousands of statements per second. */
const MAX_WAITERS = 4_096
/** How long an unused connection stays open, in milliseconds. */
const IDLE_MS = 20_000
/**
 * How long a caller waits for one of the open connections before another one is opened, in milliseconds. Most statements take less, and
 * each connection costs PostgreSQL 8 MiB once loops use it.
 */
const GROWTH_DELAY_MS = 10
/** The number of idle connections that stay open. Other programs might otherwise take all connections of the server. */
const MIN_IDLE = 2
/** The pause before the next attempt to reconnect. It doubles after each failure, from the first value to the last. */
const FIRST_RETRY_MS = 100
const LAST_RETRY_MS = 1_000
/** How long the pool opens no further connections after the server refused one or after `shedOne`. */
const GROWTH_PAUSE_MS = 1_000

type Waiter = {
  readonly resolve: (connection: PooledConnection) => void
  readonly reject: (error: DatabaseUnavailable) => void
  readonly limit: NodeJS.Timeout
}

/** Creates an empty pool. It opens connections when they are needed. */
export function makeConnectionPool(options: ConnectionPoolOptions): ConnectionPool {
  const { max, log } = options
  const idle = new Map<PooledConnection, NodeJS.Timeout>()
  const waiting = new Set<Waiter>()
  const ends = new Set<Promise<void>>()
  const closed = new AbortController()
  const drained = Promise.withResolvers<void>()
  let size = 0 // including those being opened
  let connecting = 0
  let answers = 0
  let away: Error | null = null
  let isGrowthPaused = false
  let growth: NodeJS.Timeout | null = null
  let mustShed = false
  const rejected: Record<AcquireFailure, number> = { outage: 0, timeout: 0, queue_full: 0 }

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

  function growSoon(): void {
    if (size === 0) return grow()
    growth ??= setTimer(() => {
      growth = null
      grow()
    }, GROWTH_DELAY_MS).unref()
  }

  function beginOutage(cause: Error): void {
    if (away !== null || closed.signal.aborted) return
    away = cause
    log.warn(
      { error: cause, pool: options.name },
      'the database is unavailable: requests that need it are refused until it is back',
    )
    rejected.outage += waiting.size
    refuseWaiting(new DatabaseUnavailable(AWAY, { cause }))
    dropIdle()
    void reconnect() // it never rejects
  }

  async function reconnect(): Promise<void> {
    for (let pauseMs = FIRST_RETRY_MS; away !== null; pauseMs = Math.min(pauseMs * 2, LAST_RETRY_MS)) {
      await interruptibleSleep(systemClock, pauseMs, closed.signal)
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

  /** Passes a connection to the caller that has waited longest. If none waits, the connection becomes idle. */
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
    connection.isBroken = true // the current or next statement reports the error
    if (!idle.has(connection)) return
    log.warn({ error }, 'an idle database connection was lost')
    drop(connection)
  }

  return {
    async acquire() {
      if (closed.signal.aborted) throw new DatabaseUnavailable('the database is closed')
      if (away !== null) {
        rejected.outage += 1
        throw new DatabaseUnavailable(AWAY, { cause: away })
      }
      const ready = [...idle.keys()].at(-1)
      if (ready !== undefined) {
        forget(ready)
        return ready
      }
      if (waiting.size >= MAX_WAITERS) {
        rejected.queue_full += 1
        throw new DatabaseUnavailable('too many requests wait for a database connection')
      }
      return new Promise((resolve, reject) => {
        const answersBefore = answers
        const giveUp = (): void => {
          waiting.delete(waiter)
          rejected.timeout += 1
          reject(new DatabaseUnavailable('no database connection became free in time'))
          if (answers === answersBefore) beginOutage(new Error('the database does not answer'))
        }
        const waiter = { resolve, reject, limit: setTimer(giveUp, ACQUIRE_TIMEOUT_MS) }
        waiting.add(waiter)
        growSoon()
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
    get use() {
      const inUse = size - connecting - idle.size
      const counts = { inUse, idle: idle.size, connecting, waiting: waiting.size, rejected: { ...rejected } }
      return { name: options.name, max, ...counts, isAway: away !== null }
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

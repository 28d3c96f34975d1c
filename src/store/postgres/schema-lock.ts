import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { openConnection, type Connection } from './connection.ts'
import { UnsuitableDatabase } from './database-errors.ts'
import { checkApplied, SCHEMA_LOCK_NAME, type Migration } from './migrate.ts'
import { queryableOn } from './session.ts'

/**
 * Keeps other processes from applying breaking migrations while this process runs. The lock ends with its connection.
 * If the connection breaks, the lock is acquired again at once, and the schema is checked again.
 */
export interface SchemaLock extends AsyncDisposable {
  /** Aborts with an `UnsuitableDatabase` if a migration changed the schema and this process must therefore end. */
  readonly incompatible: AbortSignal
  /** Whether the lock is held. False while the lock is being acquired again. */
  readonly isHeld: boolean
}

export type SchemaLockOptions = {
  readonly connectionString: string
  /** The migrations that this program knows. */
  readonly migrations: readonly Migration[]
  readonly clock: Clock
  readonly log: Log
}

/** How long to wait for the lock while a breaking migration is running. */
const WAIT_LIMIT_MS = 60_000
const HEARTBEAT_EVERY_MS = 5_000
const HEARTBEAT_LIMIT_MS = 5_000
const FIRST_RETRY_MS = 100
const LAST_RETRY_MS = 2_000

type HeldLock = { readonly connection: Connection; readonly lost: AbortSignal }

/** Acquires the lock. Rejects with `UnsuitableDatabase` if this program must not use the schema. */
export async function lockSchema(options: SchemaLockOptions): Promise<SchemaLock> {
  const { clock, log } = options
  const closed = new AbortController()
  const incompatible = new AbortController()
  let held: HeldLock | null = await acquireLock(options)

  async function relock(): Promise<HeldLock | null> {
    for (let pauseMs = 0; ; pauseMs = Math.min(Math.max(2 * pauseMs, FIRST_RETRY_MS), LAST_RETRY_MS)) {
      await interruptibleSleep(clock, pauseMs, closed.signal)
      if (closed.signal.aborted) return null
      try {
        return await acquireLock(options)
      } catch (error) {
        if (error instanceof UnsuitableDatabase) {
          incompatible.abort(error)
          return null
        }
        log.warn({ error }, 'the schema lock could not be acquired; will retry')
      }
    }
  }

  async function keepLocked(): Promise<void> {
    while (held !== null) {
      await untilLost(held, { clock, closed: closed.signal })
      const last = held
      held = null
      await last.connection.close()
      if (closed.signal.aborted) return
      log.warn({}, 'the connection of the schema lock was lost')
      held = await relock()
    }
  }

  const keeping = keepLocked()
  return {
    incompatible: incompatible.signal,
    get isHeld() {
      return held !== null
    },
    async [Symbol.asyncDispose]() {
      closed.abort(new Error('the schema lock is released'))
      await keeping
    },
  }
}

async function acquireLock({ connectionString, migrations }: SchemaLockOptions): Promise<HeldLock> {
  const lost = new AbortController()
  const lose = (): void => lost.abort(new Error('the connection was lost'))
  const limits = { query_timeout: WAIT_LIMIT_MS + HEARTBEAT_LIMIT_MS } // because the network may lose the answer
  const connection = await openConnection({ connectionString, application_name: 'sandyard schema', ...limits }, lose)
  const { client } = connection
  client.on('end', lose)
  try {
    await client.query(`select set_config('lock_timeout', $1, false)`, [String(WAIT_LIMIT_MS)])
    await client.query('select pg_advisory_lock_shared(hashtextextended($1, 0))', [SCHEMA_LOCK_NAME])
    await checkApplied(queryableOn(client), migrations)
    return { connection, lost: lost.signal }
  } catch (error) {
    await connection.close()
    throw error
  }
}

/** Resolves when the connection breaks, doesn't answer, or is closed by this process. */
async function untilLost(
  { connection, lost }: HeldLock,
  { clock, closed }: { readonly clock: Clock; readonly closed: AbortSignal },
): Promise<void> {
  const over = AbortSignal.any([lost, closed])
  for (;;) {
    await interruptibleSleep(clock, HEARTBEAT_EVERY_MS, over)
    if (over.aborted) return
    const answered = new AbortController()
    const asking = connection.client.query('select 1').then(
      () => true,
      () => false, // the connection is lost; the caller opens a new one
    )
    const silence = interruptibleSleep(clock, HEARTBEAT_LIMIT_MS, answered.signal, over)
    const lives = await Promise.race([asking, silence.then(() => false)])
    answered.abort()
    if (lives) continue
    connection.cut()
    return
  }
}

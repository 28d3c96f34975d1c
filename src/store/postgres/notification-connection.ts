import { openConnection } from './connection.ts'
import type { Queryable } from './session.ts'

/** A connection that receives the notifications of other processes and sends those of this one. */
export interface NotificationConnection {
  /**
   * Sends the topics in one NOTIFY. Without topics it only checks the connection. Rejects if the connection is lost.
   */
  notify(topics: readonly string[]): Promise<void>
  isLost(): boolean
  close(): Promise<void>
}

export type NotificationConnectionOptions = {
  readonly connectionString: string
  /** Called with the topics that another process sent. */
  readonly onTopics: (topics: readonly string[] | 'everything') => void
  readonly onLost: () => void
}

/** Processes of different releases share this name during an upgrade, so it must not change. */
const CHANNEL = 'sandyard_wake'

/** The payload that notifies every subscriber of every topic. */
const EVERYTHING = '*'

/** PostgreSQL accepts payloads of less than 8000 bytes. */
const PAYLOAD_LIMIT_BYTES = 7_900

const QUERY_TIMEOUT_MS = 5_000

/**
 * Opens the connection and listens. Then it notifies every subscriber, because earlier notifications were missed. This
 * process ignores its own notifications, which it recognises by the id of the PostgreSQL process that sent them.
 */
export async function openNotificationConnection(
  options: NotificationConnectionOptions,
): Promise<NotificationConnection> {
  let isLost = false
  const lose = (): void => {
    isLost = true
    options.onLost()
  }
  const connection = await openConnection(
    {
      connectionString: options.connectionString,
      application_name: 'sandyard notifications',
      query_timeout: QUERY_TIMEOUT_MS,
    },
    lose,
  )
  const { client } = connection
  client.on('end', lose)
  try {
    const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid')
    const ownPid = rows[0]?.pid
    client.on('notification', ({ channel, payload, processId }) => {
      if (channel === CHANNEL && processId !== ownPid) options.onTopics(parsePayload(payload ?? EVERYTHING))
    })
    // A notification needs no flush to disk: it is lost anyway if the server ends. Each NOTIFY is a commit of its own.
    await client.query('set synchronous_commit = off')
    await client.query(`listen ${CHANNEL}`)
  } catch (error) {
    await connection.close()
    throw error
  }
  options.onTopics('everything')
  return {
    async notify(topics) {
      if (topics.length === 0) await client.query('select 1')
      else await client.query({ text: 'select pg_notify($1, $2)', values: [CHANNEL, toPayload(topics)] })
    },
    isLost: () => isLost,
    close: () => connection.close(),
  }
}

/**
 * Notifies the subscribers of these topics in every process once the transaction commits. Use it for rare changes only:
 * see `windowMs` in `notifications.ts`.
 */
export async function notifyAtCommit(tx: Queryable, topics: readonly string[]): Promise<void> {
  await tx.query({ text: 'SELECT pg_notify($1, $2)', values: [CHANNEL, toPayload(topics)] })
}

function toPayload(topics: readonly string[]): string {
  const payload = JSON.stringify(topics)
  return Buffer.byteLength(payload) <= PAYLOAD_LIMIT_BYTES ? payload : EVERYTHING
}

/**
 * Parses the topics of a payload. A malformed payload notifies every subscriber: a needless notification costs one
 * query, but a missed one delays its subscriber until the next poll.
 */
function parsePayload(payload: string): readonly string[] | 'everything' {
  if (payload === EVERYTHING) return 'everything'
  try {
    const parsed: unknown = JSON.parse(payload)
    return Array.isArray(parsed) ? parsed.map(String) : 'everything'
  } catch {
    return 'everything'
  }
}

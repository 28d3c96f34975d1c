import { withQuery } from './api.ts'
import type { AuditEvent } from './types.ts'

type Listener = (event: AuditEvent) => void

const RETRY_MS = 3_000
const listeners = new Set<Listener>()
let stream: EventSource | null = null
let lastId: string | null = null

/**
 * Calls the listener with each audit event of the organization from now on. All listeners share one stream. It is closed
 * while the page is hidden, because a browser has few connections to one server, and then continues where it was.
 */
export function followEvents(listener: Listener): () => void {
  listeners.add(listener)
  connect()
  return () => {
    listeners.delete(listener)
    if (listeners.size > 0) return
    disconnect()
    lastId = null
  }
}

function connect(): void {
  if (stream !== null || listeners.size === 0 || document.hidden) return
  const source = new EventSource(withQuery('/v1/events/stream', { after: lastId }))
  stream = source
  source.addEventListener('event', ({ data, lastEventId }: MessageEvent<string>) => {
    lastId = lastEventId === '' ? lastId : lastEventId
    const event = JSON.parse(data) as AuditEvent
    for (const listener of listeners) listener(event)
  })
  source.addEventListener('error', () => {
    if (source.readyState !== EventSource.CLOSED) return // it reconnects by itself
    disconnect()
    lastId = null
    setTimeout(connect, RETRY_MS)
  })
}

function disconnect(): void {
  stream?.close()
  stream = null
}

document.addEventListener('visibilitychange', () => {
  if (document.hidden) disconnect()
  else connect()
})

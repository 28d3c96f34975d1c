import type { IncomingHttpHeaders } from 'node:http'
import { WebSocket } from 'ws'
import {
  ASKED_HEADER,
  STAND_BY_HOLD_MS,
  STAND_BY_PATH,
  SYNC_HOLD_MS,
  type StreamAsked,
  type SyncAnswer,
  type SyncRequest,
} from '../contract/worker-protocol.ts'
import { problemIn } from './problem-in.ts'

/** The worker's way to its control plane: HTTP and WebSocket, always dialled from here. */
export interface ControlPlane {
  /** Sends a whole picture and resolves with what is wanted. Rejects when the control plane can't be reached or refuses. */
  sync(request: SyncRequest, signal: AbortSignal): Promise<SyncAnswer>
  /**
   * Dials in with a ticket and resolves with a paused WebSocket; the signal ends the dialling, not the connection. Rejects
   * when the ticket is over or not this worker's.
   */
  dial(ticket: string, signal: AbortSignal): Promise<WebSocket>
  /**
   * Stands by for a stream and resolves, with a paused WebSocket, once one is wanted. Rejects when the control plane can't
   * be reached, or has wanted none for `STAND_BY_HOLD_MS`: then it is asked again.
   */
  standBy(signal: AbortSignal): Promise<{ readonly asked: StreamAsked; readonly socket: WebSocket }>
}

/** The control plane removed this worker for good: what it runs was given away, and it may not come back as the same one. */
export class WorkerRemoved extends Error {}

/** How long a sync may take beyond the time that the control plane holds it. */
const SYNC_SLACK_MS = 7_000
const DIAL_LIMIT_MS = 8_000
const STAND_BY_SLACK_MS = 10_000

/** Speaks to the control plane at `url` with the worker's own credential. */
export function makeControlPlane(options: { readonly url: string; readonly credential: string }): ControlPlane {
  const authorization = `Bearer ${options.credential}`
  const socketUrl = (path: string): URL => {
    const url = new URL(path, options.url)
    url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:'
    return url
  }
  return {
    async sync(request, signal) {
      const response = await fetch(new URL('/worker/v1/sync', options.url), {
        method: 'POST',
        headers: { authorization, 'content-type': 'application/json' },
        body: JSON.stringify(request),
        signal: AbortSignal.any([signal, AbortSignal.timeout(SYNC_HOLD_MS + SYNC_SLACK_MS)]),
      })
      const text = await response.text()
      if (!response.ok) throw refusalOf(response.status, text)
      return JSON.parse(text) as SyncAnswer // the control plane is this program too, of the same protocol version
    },
    async dial(ticket, signal) {
      const path = `${STAND_BY_PATH}/${encodeURIComponent(ticket)}`
      const { socket } = await openSocket(socketUrl(path), { authorization, limitMs: DIAL_LIMIT_MS, signal })
      return socket
    },
    async standBy(signal) {
      const limitMs = STAND_BY_HOLD_MS + STAND_BY_SLACK_MS
      const { socket, headers } = await openSocket(socketUrl(STAND_BY_PATH), { authorization, limitMs, signal })
      const text = Buffer.from(String(headers[ASKED_HEADER]), 'base64url').toString('utf8')
      return { asked: JSON.parse(text) as StreamAsked, socket } // this program wrote it, of the same protocol version
    },
  }
}

function refusalOf(status: number, text: string): Error {
  const { code, message } = problemIn(text)
  if (status === 401 && code === 'worker_removed') return new WorkerRemoved(message)
  return new Error(`the control plane refused a sync: ${String(status)} ${message}`)
}

type Opening = { readonly authorization: string; readonly limitMs: number; readonly signal: AbortSignal }

function openSocket(
  url: URL,
  { authorization, limitMs, signal }: Opening,
): Promise<{ readonly socket: WebSocket; readonly headers: IncomingHttpHeaders }> {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted()
    let headers: IncomingHttpHeaders = {}
    const socket = new WebSocket(url, {
      headers: { authorization },
      handshakeTimeout: limitMs,
      perMessageDeflate: false,
      // Zeros are a mask that costs nothing; an unpredictable one protects proxies from scripts in browsers (RFC 6455, 10.3).
      generateMask: (mask) => void mask.fill(0),
    })
    const onAbort = (): void => socket.terminate()
    signal.addEventListener('abort', onAbort, { once: true })
    // After the dialling, whoever joins the connection meets its end; an error that came with it tells nobody more.
    socket.on('error', (error) => {
      signal.removeEventListener('abort', onAbort)
      reject(error)
    })
    socket.once('upgrade', (reply) => {
      headers = reply.headers
    })
    socket.once('open', () => {
      signal.removeEventListener('abort', onAbort)
      socket.pause()
      resolve({ socket, headers })
    })
  })
}

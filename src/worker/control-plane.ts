import { WebSocket } from 'ws'
import { SYNC_HOLD_MS, type SyncAnswer, type SyncRequest } from '../contract/worker-protocol.ts'

/** The worker's way to its control plane: HTTP and WebSocket, always dialled from here. */
export interface ControlPlane {
  /** Sends a whole picture and resolves with what is wanted. Rejects when the control plane can't be reached or refuses. */
  sync(request: SyncRequest, signal: AbortSignal): Promise<SyncAnswer>
  /**
   * Dials in with a ticket and resolves with a paused WebSocket; the signal ends the dialling, not the connection. Rejects
   * when the ticket is over or not this worker's.
   */
  dial(ticket: string, signal: AbortSignal): Promise<WebSocket>
}

/** How long a sync may take beyond the time that the control plane holds it. */
const SYNC_SLACK_MS = 7_000
const DIAL_LIMIT_MS = 8_000

/** Speaks to the control plane at `url` with the worker's own credential. */
export function makeControlPlane(options: { readonly url: string; readonly credential: string }): ControlPlane {
  const authorization = `Bearer ${options.credential}`
  return {
    async sync(request, signal) {
      const response = await fetch(new URL('/worker/v1/sync', options.url), {
        method: 'POST',
        headers: { authorization, 'content-type': 'application/json' },
        body: JSON.stringify(request),
        signal: AbortSignal.any([signal, AbortSignal.timeout(SYNC_HOLD_MS + SYNC_SLACK_MS)]),
      })
      const text = await response.text()
      if (!response.ok)
        throw new Error(`the control plane refused a sync: ${String(response.status)} ${text.slice(0, 300)}`)
      return JSON.parse(text) as SyncAnswer // the control plane is this program too, of the same protocol version
    },
    dial(ticket, signal) {
      const url = new URL(`/worker/v1/streams/${encodeURIComponent(ticket)}`, options.url)
      url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:'
      return new Promise((resolve, reject) => {
        signal.throwIfAborted()
        const socket = new WebSocket(url, {
          headers: { authorization },
          handshakeTimeout: DIAL_LIMIT_MS,
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
        socket.once('open', () => {
          signal.removeEventListener('abort', onAbort)
          socket.pause()
          resolve(socket)
        })
      })
    },
  }
}

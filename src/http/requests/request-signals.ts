import type { ServerResponse } from 'node:http'

/** Why the work for a request ends early: its client left before the reply was sent. Nothing is wrong with the server. */
export class ClientDisconnected extends Error {
  override readonly message = 'the client disconnected'
}

/**
 * A signal that is aborted when the client disconnects before its reply is sent. Fastify's own `request.signal` can't be used: it
 * is aborted as soon as a body has been read (Fastify 5.12, Node 24).
 */
export function abortOnDisconnect(response: ServerResponse): AbortSignal {
  const gone = new AbortController()
  onResponseClose(response, () => {
    if (!response.writableFinished) gone.abort(new ClientDisconnected())
  })
  return gone.signal
}

/** Calls `act` when the reply is sent or its connection is closed. Calls it at once if that has already happened. */
export function onResponseClose(response: ServerResponse, act: () => void): void {
  if (response.closed) act()
  else response.once('close', act)
}

/**
 * Creates a function that returns a signal for each request. The signal is aborted when the client disconnects before
 * the reply is sent, or when `closing` is aborted. Each signal has its own controller, because `AbortSignal.any` takes
 * 4 KiB more for each waiting request (Node 24.21, 2026-11).
 */
export function makeRequestSignals(closing: AbortSignal): (response: ServerResponse) => AbortSignal {
  const open = new Set<AbortController>()
  closing.addEventListener('abort', () => {
    for (const request of open) request.abort(closing.reason)
  })
  return (response) => {
    const request = new AbortController()
    if (closing.aborted) request.abort(closing.reason)
    open.add(request)
    onResponseClose(response, () => {
      open.delete(request)
      if (!response.writableFinished) request.abort(new ClientDisconnected())
    })
    return request.signal
  }
}

import type { ServerResponse } from 'node:http'

/**
 * Aborted when the client leaves before its reply is out. Fastify's own `request.signal` follows the request's `close`,
 * which comes as soon as a body has been read (Fastify 5.12, Node 24).
 */
export function clientGone(response: ServerResponse): AbortSignal {
  const gone = new AbortController()
  if (response.closed && !response.writableFinished) gone.abort(new Error('the client left'))
  response.once('close', () => {
    if (!response.writableFinished) gone.abort(new Error('the client left'))
  })
  return gone.signal
}

import type { IncomingMessage } from 'node:http'
import { Socket } from 'node:net'
import type { FastifyReply } from 'fastify'
import { once } from '../../lib/turns/once.ts'

/** How many bytes of the body of a refused request are read. A smaller body is read to its end, and its connection stays open. */
const READ_MAX_BYTES = 64 * 1024
/** How long the client of a larger body may take to read the refusal, in milliseconds. Then the connection is closed. */
const LINGER_MS = 2_000

/**
 * Stops reading the body of a request that is refused before its body has arrived, and closes its connection. Call it before the
 * refusal is sent. Node itself reads bodies that nobody wants to their ends, as fast as they come. If the connection were closed at
 * once, the kernel would reset it because of the unread bytes, and the client might not see the refusal.
 */
export function lingerAfterRefusal(request: IncomingMessage, reply: FastifyReply): void {
  const { socket } = request
  if (request.complete || !mayBeLarge(request) || !(socket instanceof Socket)) return
  reply.header('connection', 'close')
  let readBytes = 0
  request.on('data', (piece: Buffer) => {
    readBytes += piece.length
    if (readBytes > READ_MAX_BYTES) request.pause() // then Node reads no more of the connection either
  })
  const destroySoon = socket.destroySoon.bind(socket)
  const destroy = (): void => void socket.destroy()
  const linger = once(() => {
    socket.end()
    request.once('end', destroy)
    setTimeout(destroy, LINGER_MS).unref()
  })
  // Node calls this when the reply of a connection's last request is sent. A closing server calls it repeatedly.
  socket.destroySoon = () => {
    if (request.complete) destroySoon()
    else linger()
  }
}

function mayBeLarge({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > READ_MAX_BYTES
}

import type { Socket } from 'node:net'
import { STATUS_CODES } from 'node:http'
import { refusalProblem } from '../domain/refusal.ts'
import type { Uuids } from '../lib/uuid.ts'
import type { ByteBodies } from './byte-bodies.ts'
import { renderProblem, type ProblemReply } from './problem-reply.ts'

/** Answers what is not HTTP, or comes too late, with the error envelope, and closes the connection. */
export function refuseMalformed(uuids: Uuids, byteBodies: ByteBodies): (error: Error, socket: Socket) => void {
  return (error, socket) => {
    if ('code' in error && error.code === 'ERR_HTTP_REQUEST_TIMEOUT' && byteBodies.has(socket)) return
    if (!socket.writable) {
      socket.destroy()
      return
    }
    const problem = refusalProblem({
      code: 'invalid_request',
      field: 'request',
      seen: 'malformed or late bytes',
      accepted: 'an HTTP/1.1 request',
    })
    socket.end(rawReply(renderProblem(problem, uuids.next())))
  }
}

/** A reply as bytes, for connections that no longer have a response object. */
export function rawReply({ status, headers, body }: ProblemReply): string {
  const all = { ...headers, 'content-length': String(Buffer.byteLength(body)), connection: 'close' }
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`)
  return `HTTP/1.1 ${String(status)} ${STATUS_CODES[status] ?? ''}\r\n${lines.join('')}\r\n${body}`
}

import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { maxHeaderSize, STATUS_CODES } from 'node:http'
import { refusalProblem } from '../../domain/spec/refusal.ts'
import type { Uuids } from '../../lib/uuid.ts'
import type { StreamedBodies } from '../requests/streamed-bodies.ts'
import { renderProblem, type ProblemReply } from '../server/problem-reply.ts'

/** Answers what is not HTTP, or comes too late, with the error envelope, and closes the connection. */
export function refuseMalformed(uuids: Uuids, byteBodies: StreamedBodies): (error: Error, socket: Socket) => void {
  return (error, socket) => {
    if ('code' in error && error.code === 'ERR_HTTP_REQUEST_TIMEOUT' && byteBodies.has(socket)) return
    if (!socket.writable) {
      socket.destroy()
      return
    }
    const { field, seen, accepted } = PARSER_ERRORS['code' in error ? String(error.code) : ''] ?? MALFORMED
    const problem = refusalProblem({ code: 'invalid_request', field, seen, accepted })
    endWithProblem(socket, renderProblem(problem, uuids.next()))
  }
}

type ParserRefusal = { readonly field: string; readonly seen: string; readonly accepted: string }

const MALFORMED: ParserRefusal = { field: 'request', seen: 'malformed bytes', accepted: 'an HTTP/1.1 request' }

/** What the parser says where a client can do something about it (Node's error codes). */
const PARSER_ERRORS: Readonly<Record<string, ParserRefusal>> = {
  HPE_HEADER_OVERFLOW: {
    field: 'headers',
    seen: `more than ${String(maxHeaderSize)} bytes`,
    accepted: `a request line and headers of at most ${String(maxHeaderSize)} bytes`,
  },
  ERR_HTTP_REQUEST_TIMEOUT: { field: 'request', seen: 'late bytes', accepted: 'a whole request in time' },
}

/** How long a refused client may take to read the refusal and to close its side, in milliseconds. */
const LINGER_MS = 2_000

/** Answers on a connection that has no response object, and closes it, whatever the client does with its side. */
export function endWithProblem(socket: Duplex, reply: ProblemReply): void {
  socket.end(formatRawReply(reply))
  setTimeout(() => socket.destroy(), LINGER_MS).unref()
}

/** A reply as bytes, for connections that no longer have a response object. */
export function formatRawReply({ status, headers, body }: ProblemReply): string {
  const all = { ...headers, 'content-length': String(Buffer.byteLength(body)), connection: 'close' }
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`)
  return `HTTP/1.1 ${String(status)} ${STATUS_CODES[status] ?? ''}\r\n${lines.join('')}\r\n${body}`
}

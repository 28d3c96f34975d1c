import {
  request as httpRequest,
  STATUS_CODES,
  type Agent,
  type ClientRequest,
  type IncomingMessage,
  type ServerResponse,
} from 'node:http'
import type { Duplex } from 'node:stream'
import { beginReply, countChunks, countInformation, readWhole } from './pace-replies.ts'
import { replyHeaders, requestHeaders, type ForwardedBy } from './proxy-headers.ts'

/** A request of a client that goes on to a port of a sandbox. */
export type ProxiedRequest = {
  readonly request: IncomingMessage
  /** The path and query for the sandbox. */
  readonly path: string
  readonly port: number
  readonly agent: Agent
  readonly forwarded: ForwardedBy
  /** Ends the exchange. */
  readonly signal: AbortSignal
}

/**
 * Sends a request to a sandbox and its reply to the client, both as they arrive. Resolves once the exchange is over. Rejects, before
 * anything was sent to the client, if the sandbox gives no reply.
 */
export async function proxyRequest(proxied: ProxiedRequest, response: ServerResponse): Promise<void> {
  const { request, signal } = proxied
  const over = Promise.withResolvers<undefined>()
  const outgoing = openRequest(proxied)
  const stop = (): void => {
    outgoing.destroy(new Error('the exchange was ended'))
    if (response.headersSent) response.destroy()
  }
  signal.addEventListener('abort', stop, { once: true })
  response.once('close', () => {
    outgoing.destroy()
    over.resolve(undefined)
  })
  outgoing.once('response', (reply) => {
    countChunks(reply)
    response.writeHead(
      reply.statusCode ?? 502,
      reply.statusMessage ?? '',
      replyHeaders(reply.rawHeaders, reply.headers),
    )
    // The head goes out with the first bytes of the body if they are here already: a write of the system is a tenth of the work.
    setImmediate(() => {
      if (!response.destroyed) response.flushHeaders()
    })
    reply.on('error', () => response.destroy())
    reply.once('aborted', () => response.destroy())
    reply.pipe(response)
  })
  outgoing.once('error', (error) => {
    if (response.headersSent) response.destroy()
    else over.reject(error)
  })
  if (hasBody(request)) request.pipe(outgoing)
  else outgoing.end()
  try {
    await over.promise
  } finally {
    signal.removeEventListener('abort', stop)
  }
}

/**
 * Sends the request for an upgrade, which must have no body, to a sandbox, and connects the client with what answers. Resolves once both
 * have closed. Rejects, before anything was sent to the client, if the sandbox gives no reply.
 */
export async function proxyUpgrade(proxied: ProxiedRequest, client: Duplex, head: Buffer): Promise<void> {
  const { request, signal } = proxied
  const over = Promise.withResolvers<undefined>()
  const outgoing = openRequest(proxied, ['Connection', 'Upgrade', 'Upgrade', request.headers.upgrade ?? ''])
  outgoing.shouldKeepAlive = false // the sandbox may take what follows for the other protocol, whatever it replied
  const stop = (): void => {
    outgoing.destroy(new Error('the exchange was ended'))
    client.destroy()
  }
  signal.addEventListener('abort', stop, { once: true })
  let isAnswered = false
  client.on('error', () => client.destroy())
  client.once('close', () => {
    outgoing.destroy()
    over.resolve(undefined)
  })
  outgoing.once('upgrade', (reply, sandbox, first) => {
    isAnswered = true
    readWhole(sandbox)
    const upgrade = ['Connection', 'Upgrade', 'Upgrade', reply.headers.upgrade ?? '']
    client.write(renderHead(reply, [...replyHeaders(reply.rawHeaders, reply.headers), ...upgrade]))
    if (first.length > 0) client.write(first)
    if (head.length > 0) sandbox.write(head)
    sandbox.on('error', () => client.destroy())
    sandbox.once('close', () => client.destroy())
    client.once('close', () => sandbox.destroy())
    sandbox.pipe(client)
    client.pipe(sandbox)
  })
  outgoing.once('response', (reply) => {
    isAnswered = true
    countChunks(reply)
    client.write(renderHead(reply, [...replyHeaders(reply.rawHeaders, reply.headers), 'Connection', 'close']))
    reply.on('error', () => client.destroy())
    reply.pipe(client)
  })
  outgoing.once('error', (error) => {
    if (isAnswered) client.destroy()
    else over.reject(error)
  })
  outgoing.end()
  try {
    await over.promise
  } finally {
    signal.removeEventListener('abort', stop)
  }
}

/** The most replies before the real one, such as 103. Each takes longer than a chunk, and clients don't get them. */
const INFORMATION_MAX = 16

function openRequest(
  { request, path, port, agent, forwarded }: ProxiedRequest,
  more: readonly string[] = [],
): ClientRequest {
  const outgoing = httpRequest({
    agent,
    host: 'sandbox',
    port,
    path,
    method: request.method ?? 'GET',
    setHost: false,
    headers: [...requestHeaders(request.rawHeaders, request.headers, forwarded), ...more],
  })
  let information = 0
  outgoing.once('socket', beginReply)
  outgoing.on('information', () => {
    countInformation(outgoing.socket)
    information += 1
    if (information > INFORMATION_MAX) outgoing.destroy(new Error('too many informational replies'))
  })
  return outgoing
}

/** Whether a request has a body (RFC 9112, section 6.3). */
export function hasBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0
}

function renderHead({ statusCode = 502, statusMessage }: IncomingMessage, headers: readonly string[]): string {
  const lines: string[] = []
  for (let at = 0; at + 1 < headers.length; at += 2) lines.push(`${headers[at] ?? ''}: ${headers[at + 1] ?? ''}\r\n`)
  return `HTTP/1.1 ${String(statusCode)} ${statusMessage ?? STATUS_CODES[statusCode] ?? ''}\r\n${lines.join('')}\r\n`
}

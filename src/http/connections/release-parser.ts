import type { EventEmitter } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { Socket } from 'node:net'

/** How long a request must have waited before its connection's parser is given back, in milliseconds. */
const LONG_MS = 1_000
/** What a client may send after a request that waits, in bytes, before its connection is dropped: it is read to see it leave. */
const AFTER_MOST_BYTES = 64 * 1024

/** Requests that may wait for long. */
export type LongWaits = { add(request: IncomingMessage, response: ServerResponse): void }

type Entry = { readonly request: IncomingMessage; readonly response: ServerResponse; readonly sinceMs: number }

/**
 * Gives back the HTTP parsers of requests that wait for long: each is 6 to 7 KiB beside the JavaScript heap, more than all
 * else of a connection (Node 24.21: 10,000 parsers took 62 MB; a connection without one takes 2 KiB, 2026-11). Such a
 * connection is closed after its reply, which says so; where Node's parser is not as it is known, it is left alone.
 */
export function makeLongWaits(monotonicMs: () => number): LongWaits {
  const waiting: Entry[] = []
  let timer: NodeJS.Timeout | null = null
  const sweep = (): void => {
    timer = null
    const before = monotonicMs() - LONG_MS
    let count = 0
    for (const { request, response, sinceMs } of waiting) {
      if (sinceMs > before) break
      count += 1
      if (!response.headersSent && !response.closed) releaseParser(request, response)
    }
    waiting.splice(0, count)
    if (waiting.length > 0) arm()
  }
  const arm = (): void => {
    timer = setTimeout(sweep, LONG_MS).unref()
  }
  return {
    add(request, response) {
      waiting.push({ request, response, sinceMs: monotonicMs() })
      if (timer === null) arm()
    },
  }
}

/** What Node keeps at a socket, as far as it is used here. */
type Parser = { readonly unconsume: () => void; readonly remove: () => void; readonly close: () => void }

function releaseParser(request: IncomingMessage, response: ServerResponse): void {
  const { socket } = request
  const parser = parserOf(socket)
  const listeners = nodesListeners(socket, response)
  if (parser === null || listeners === null || !request.complete) return
  response.shouldKeepAlive = false
  for (const one of listeners) drop(one)
  parser.unconsume()
  parser.remove()
  for (const name of ['socket', 'incoming', 'outgoing', 'onIncoming']) Reflect.set(parser, name, null)
  // Node's own wrappers of these look after the parser.
  for (const name of ['on', 'addListener', 'prependListener', 'setEncoding'] as const)
    Reflect.set(socket, name, Reflect.get(Socket.prototype, name))
  Reflect.set(socket, 'parser', null)
  Reflect.set(request, 'parser', null)
  parser.close()
  shedState(request, response)
  let after = 0
  socket.on('data', (bytes: Buffer) => {
    after += bytes.length
    if (after > AFTER_MOST_BYTES) socket.destroy()
  })
  socket.on('end', () => socket.destroy()) // nobody reads the reply of a half-closed connection whose parser is gone
  socket.resume()
}

function parserOf(socket: Socket): Parser | null {
  const parser: unknown = Reflect.get(socket, 'parser')
  if (typeof parser !== 'object' || parser === null) return null
  return 'unconsume' in parser && 'remove' in parser && 'close' in parser && isParser(parser) ? parser : null
}

function isParser(parser: object): parser is Parser {
  return ['unconsume', 'remove', 'close'].every((name) => typeof Reflect.get(parser, name) === 'function')
}

/**
 * Node's record of a connection hangs at its response, which needs it no more: it ends the socket by itself here. What came
 * with the request is known to whoever serves it.
 */
function shedState(request: IncomingMessage, response: ServerResponse): void {
  const { socket } = request
  response.once('finish', endSocket)
  Reflect.set(response, '_onPendingData', ignore)
  request.rawHeaders = []
  socket.setTimeout(0)
}

function endSocket(this: ServerResponse): void {
  this.socket?.destroySoon()
}

function ignore(): void {
  // nothing is pending on a connection without a parser
}

/** A listener of Node's own, whose type it doesn't tell. */
type Nodes = { readonly emitter: EventEmitter; readonly event: string; readonly listener: unknown }

/**
 * The listeners by which Node feeds a connection's parser and goes on after a reply: bound functions, which hold both. Null
 * unless there is one of each name that is known: what is left of them would meet a parser that is gone.
 */
function nodesListeners(socket: Socket, response: ServerResponse): readonly Nodes[] | null {
  const wanted = [
    { emitter: socket, event: 'data', name: 'bound socketOnData' },
    { emitter: socket, event: 'end', name: 'bound socketOnEnd' },
    { emitter: socket, event: 'close', name: 'bound socketOnClose' },
    { emitter: socket, event: 'drain', name: 'bound socketOnDrain' },
    { emitter: response, event: 'finish', name: 'bound resOnFinish' },
  ]
  const found = wanted.flatMap(({ emitter, event, name }) =>
    emitter.rawListeners(event).flatMap((listener) => (listener.name === name ? [{ emitter, event, listener }] : [])),
  )
  const areKnown = wanted.every(({ event }) => found.filter((one) => one.event === event).length === 1)
  return areKnown ? found : null
}

function drop({ emitter, event, listener }: Nodes): void {
  const remove: unknown = Reflect.get(emitter, 'removeListener')
  if (typeof remove === 'function') Reflect.apply(remove, emitter, [event, listener])
}

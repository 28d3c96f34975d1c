import type { IncomingMessage, Server } from 'node:http'
import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { rateLimitAddress } from '../../lib/rate-limit-address.ts'
import { makePieceJoiner, type PieceJoiner } from '../../lib/streams/join-pieces.ts'
import { makePiecePacer, type Pace } from '../../lib/turns/piece-pacer.ts'
import type { ClientAddresses } from '../requests/client-address.ts'
import { ChunkedRequest } from '../requests/bodies/chunked-request.ts'
import { clientConnectionEvent } from './client-connection-event.ts'
import { readInParts } from './read-in-parts.ts'

/**
 * Paces request bodies in very small chunks. Node calls its code for each chunk, which takes 3 to 5 µs even if nobody wants it. It parses
 * all that it has read of a connection in one turn of the event loop. 64 KiB have 10,900 chunks of a byte (Node 24.21, 2026-11).
 */

/** How many chunks arrive of a body that waits, because they are of one read, before all connections are read in parts. */
const FAR_TOO_MANY = 512
/** After how many chunks in a turn small ones are joined. */
const UNJOINED_CHUNKS = 16

export type ChunkPacer = {
  /** For the option `IncomingMessage` of the server. */
  readonly Request: typeof IncomingMessage
  /** Begins to pace the requests of the server. Call it once all its listeners for upgrades are there. */
  attach(server: Server): void
}

/**
 * Creates a pacer for one server. A body with too many chunks in a turn waits, and clients take turns. Once a read has had far too many,
 * all connections are read in parts. This takes 2 µs for each request (2026-11), so it doesn't begin earlier.
 */
export function makeChunkPacer(clients: Pick<ClientAddresses, 'of'>): ChunkPacer {
  const pacer = makePiecePacer()
  const whole = new Set<Socket>()
  const stopParts = new WeakMap<Duplex, () => void>()
  let isInParts = false
  let chunks = 0

  const takeParts = (socket: Socket): void => {
    stopParts.set(
      socket,
      readInParts(socket, () => chunks),
    )
  }

  const takeAllInParts = (): void => {
    if (isInParts) return
    isInParts = true
    for (const socket of whole) takeParts(socket)
    whole.clear()
  }

  class PacedRequest extends ChunkedRequest {
    #pace: Pace | null = null
    #isWaiting = false
    #chunksBeyond = 0
    #chunksOfTurn = 0
    #joiner: PieceJoiner | null = null

    override push(piece: Buffer | null): boolean {
      if (piece === null || this.headers['transfer-encoding'] === undefined) {
        this.#joiner?.pushKept()
        return super.push(piece)
      }
      this.#count()
      if (this.#isDropped()) return false
      this.#joiner ??= makePieceJoiner((joined) => void super.push(joined))
      if (this.#hasMany() && this.#joiner.keepSmall(piece)) return !this.#isWaiting
      this.#joiner.pushKept()
      return super.push(piece) && !this.#isWaiting
    }

    override _read(size: number): void {
      if (!this.#isWaiting && !this.#isDropped()) super._read(size) // which makes Node read the connection
    }

    /** Node calls this when the reply was sent and nobody has read the body. Its own doesn't push what comes then, but drops it at full speed. */
    _dump(): void {
      this.removeAllListeners('data').resume()
    }

    #isDropped(): boolean {
      return this.chunksLeft !== null && this.chunksLeft <= 0
    }

    #hasMany(): boolean {
      if (this.#chunksOfTurn === 0) setImmediate(() => void (this.#chunksOfTurn = 0))
      this.#chunksOfTurn += 1
      return this.#chunksOfTurn > UNJOINED_CHUNKS
    }

    #count(): void {
      chunks += 1
      this.chunkCount += 1
      if (this.chunksLeft !== null) this.chunksLeft -= 1
      this.#pace ??= pacer.paceOf(rateLimitAddress(clients.of(this)))
      const mayGoOn = this.#pace.count()
      if (this.#isWaiting) {
        this.#chunksBeyond += 1
        if (this.#chunksBeyond === FAR_TOO_MANY) takeAllInParts()
      } else if (!mayGoOn) void this.#wait(this.#pace)
    }

    async #wait(pace: Pace): Promise<void> {
      this.#isWaiting = true
      this.#chunksBeyond = 0
      await pace.wait(() => this.socket.destroyed)
      this.#isWaiting = false
      if (this.readableLength < this.readableHighWaterMark) this._read(0) // otherwise whoever takes the body will
    }
  }

  return {
    Request: PacedRequest,
    attach(server) {
      server.on(clientConnectionEvent(server), (socket: Socket) => {
        if (isInParts) return takeParts(socket)
        whole.add(socket)
        socket.once('close', () => whole.delete(socket))
      })
      const forget = (_request: IncomingMessage, socket: Socket): void => {
        whole.delete(socket)
        stopParts.get(socket)?.()
      }
      for (const event of ['upgrade', 'connect']) {
        // Without another listener, Node closes such connections.
        if (server.listenerCount(event) > 0) server.prependListener(event, forget)
      }
    },
  }
}

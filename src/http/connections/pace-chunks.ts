import type { IncomingMessage, Server } from 'node:http'
import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { rateLimitAddress } from '../../lib/rate-limit-address.ts'
import { makeFairSemaphore } from '../../lib/turns/fair-semaphore.ts'
import type { ClientAddresses } from '../requests/client-address.ts'
import { ChunkedRequest } from '../requests/bodies/chunked-request.ts'
import { clientConnectionEvent } from './client-connection-event.ts'
import { readInParts } from './read-in-parts.ts'

/**
 * Paces request bodies in very small chunks. Node calls its code for each chunk, which takes 3 to 5 µs even if nobody wants it, and parses
 * all that it has read of a connection in one turn of the event loop: 64 KiB have 10,900 chunks of a byte (Node 24.21, 2026-11).
 */

/** How many chunks of a body are read in one turn. If Node reads 2 MiB, the most in a turn, they have 4 KiB each. */
const TURN_CHUNKS = 512
/** How long after a body with more chunks was read on the next such body is, in milliseconds. */
const REST_MS = 10
/** Smaller chunks are joined, after so many in a turn. Whoever takes a body spends more time on a piece than Node on a chunk. */
const SMALL_BYTES = 1024
const UNJOINED_CHUNKS = 16

export type ChunkPacer = {
  /** For the option `IncomingMessage` of the server. */
  readonly Request: typeof IncomingMessage
  /** Begins to pace the requests of the server. Call it once all its listeners for upgrades are there. */
  attach(server: Server): void
}

/**
 * Creates a pacer for one server. A body with more than `TURN_CHUNKS` in a turn waits. Of those that wait, one is read on every `REST_MS`,
 * clients in turn. Once a read has had far more, all connections are read in parts. This takes 2 µs for each request
 * (2026-11), so it doesn't begin earlier.
 */
export function makeChunkPacer(clients: Pick<ClientAddresses, 'of'>): ChunkPacer {
  const waiting = makeFairSemaphore({ permits: 1, permitsPerKey: 1, waitersPerKey: Number.MAX_SAFE_INTEGER })
  const whole = new Set<Socket>()
  const stopParts = new WeakMap<Duplex, () => void>()
  const turns = { current: 0, isCounted: false }
  let isInParts = false
  let chunks = 0

  const turnOfNow = (): number => {
    if (!turns.isCounted) {
      turns.isCounted = true
      setImmediate(() => {
        turns.isCounted = false
        turns.current += 1
      })
    }
    return turns.current
  }

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
    #turn = -1
    #chunksOfTurn = 0
    #isWaiting = false
    #joined: Buffer[] = []

    override push(piece: Buffer | null): boolean {
      if (piece === null || this.headers['transfer-encoding'] === undefined) {
        this.#pushJoined()
        return super.push(piece)
      }
      this.#count()
      if (this.#isDropped()) return false
      if (piece.length < SMALL_BYTES && this.#chunksOfTurn > UNJOINED_CHUNKS) {
        if (this.#joined.push(piece) === 1) setImmediate(() => this.#pushJoined())
        return !this.#isWaiting
      }
      this.#pushJoined()
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

    #pushJoined(): void {
      const joined = this.#joined
      if (joined.length === 0) return
      this.#joined = []
      super.push(Buffer.concat(joined))
    }

    #count(): void {
      chunks += 1
      this.chunkCount += 1
      if (this.chunksLeft !== null) this.chunksLeft -= 1
      const now = turnOfNow()
      if (this.#turn !== now) {
        this.#turn = now
        this.#chunksOfTurn = 0
      }
      this.#chunksOfTurn += 1
      if (this.#chunksOfTurn >= TURN_CHUNKS && !this.#isWaiting) void this.#wait()
      if (this.#chunksOfTurn === 2 * TURN_CHUNKS) takeAllInParts()
    }

    async #wait(): Promise<void> {
      this.#isWaiting = true
      const release = await waiting.acquire(rateLimitAddress(clients.of(this)))
      if (!this.socket.destroyed) await sleep(REST_MS, undefined, { ref: false })
      this.#isWaiting = false
      if (this.readableLength < this.readableHighWaterMark) this._read(0) // otherwise whoever takes the body will
      release?.()
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

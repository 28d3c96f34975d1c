import type { Socket } from 'node:net'
import { Duplex } from 'node:stream'
import type { Pace } from '../turns/piece-pacer.ts'
import { makeMessageSplitter } from './message-splitter.ts'

/** A connection whose timeouts can be set, if it is a socket. */
type Connection = Duplex & Partial<Pick<Socket, 'setTimeout' | 'setNoDelay'>>

type SplitOptions = {
  /** A larger binary message is refused by the library, which needs the same limit. */
  readonly limitBytes: number
  /** Bytes that were read from the connection before. */
  readonly first?: Buffer
  /** Whether the reply to the upgrade arrives before the first frame. Nothing is split if its status is not 101. */
  readonly startsWithReply?: boolean
  /** Called with bytes of the connection before they are shown. */
  readonly onBytes?: (bytes: Buffer) => void
  /** How many frames are taken in a turn of the event loop. Absent: all that arrive. */
  readonly pace?: Pace
}

/** The largest reply to an upgrade, the same as Node's limit on heads. */
const REPLY_LIMIT_BYTES = 16 * 1024
/** How many frames are taken for a reader that is paused. */
const UNREAD_FRAMES = 256
const END_OF_HEAD = '\r\n\r\n'

/**
 * Returns a connection to give to a WebSocket library in place of `connection`. It splits the binary messages that arrive, as
 * `makeMessageSplitter` describes, and leaves everything that is sent. Its end, its errors and its backpressure are those of
 * `connection`.
 *
 * The library joins each message before it shows it. A message of 1 MiB needs two buffers outside of the heap then, and they
 * cause full garbage collections. 128 MiB into a file of a sandbox take the server 0.67 to 1.13 s of processor time instead of
 * 1.39 to 1.53 (2026-11, 2 busy cores).
 */
export function splitMessages(connection: Connection, options: SplitOptions): Duplex {
  const splitter = makeMessageSplitter(options.limitBytes)
  const reading = { isHeld: false }
  const split = new SplitConnection(connection, reading)
  const emit = (bytes: Buffer): void => {
    options.onBytes?.(bytes)
    if (!split.push(bytes)) connection.pause()
  }
  const { pace } = options
  let unread = 0
  const countFrame = (): boolean => {
    unread = split.isPaused() ? unread + 1 : 0 // those that wait for a paused reader come to it in one turn
    return pace === undefined || (pace.count() && unread < UNREAD_FRAMES)
  }
  const goOn = (): void => {
    reading.isHeld = false
    connection.resume()
  }
  let take = (chunk: Buffer): void => {
    const taken = splitter.push(chunk, emit, countFrame)
    if (taken === chunk.length || pace === undefined) return
    reading.isHeld = true
    connection.pause()
    connection.unshift(chunk.subarray(taken))
    void pace.wait(() => split.destroyed).then(() => void (split.isPaused() ? split.once('resume', goOn) : goOn()))
  }
  if (options.startsWithReply === true) {
    const takeFrames = take
    let reply = Buffer.alloc(0)
    take = (chunk) => {
      reply = Buffer.concat([reply, chunk])
      const end = reply.indexOf(END_OF_HEAD) + END_OF_HEAD.length
      if (end < END_OF_HEAD.length) {
        if (reply.length > REPLY_LIMIT_BYTES) split.destroy(new Error('the reply to an upgrade is too large'))
        return
      }
      take = /^HTTP\/1\.1 101\b/.test(reply.toString('latin1', 0, end)) ? takeFrames : emit
      emit(reply.subarray(0, end))
      if (end < reply.length) take(reply.subarray(end))
    }
  }
  if (options.first !== undefined) take(options.first)
  connection.on('data', (chunk: Buffer) => {
    take(chunk)
  })
  connection.on('end', () => {
    split.push(null)
    split.read(0) // shows the end to a reader that is paused, as sockets do
  })
  connection.on('error', (error) => split.destroy(error))
  connection.on('close', () => split.destroy())
  connection.on('timeout', () => split.emit('timeout'))
  return split
}

class SplitConnection extends Duplex {
  readonly #connection: Connection

  /** While `reading` is held, nothing is read of the connection. */
  constructor(connection: Connection, reading: { readonly isHeld: boolean }) {
    super({
      read: () => void (reading.isHeld || connection.resume()),
      write: (chunk: Buffer, _encoding, done) => void connection.write(chunk, done),
      writev(chunks, done) {
        const last = chunks.length - 1
        connection.cork()
        for (const [index, { chunk }] of chunks.entries()) connection.write(chunk, index === last ? done : undefined)
        connection.uncork()
      },
      final: (done) => void connection.end(done),
      destroy(error, done) {
        connection.destroy()
        done(error)
      },
    })
    this.#connection = connection
  }

  /** Libraries set these of the connection that they get. */
  setTimeout(ms: number): this {
    this.#connection.setTimeout?.(ms)
    return this
  }

  setNoDelay(isOn?: boolean): this {
    this.#connection.setNoDelay?.(isOn)
    return this
  }
}

import type { IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import { makePieceJoiner } from '../lib/streams/join-pieces.ts'
import type { Pace } from '../lib/turns/piece-pacer.ts'

/**
 * Paces the replies of sandboxes. Node parses all that it has read of a connection in one turn of the event loop, and calls its code for
 * each chunk of a body. 64 KiB have 10,900 chunks of a byte. So its parser gets reads in parts, and the rest waits after a
 * part with many chunks.
 */

/** The sizes of the parts: first the smallest, then twice the last one while a part has few pieces. A body that isn't chunked is read whole. */
const PART_MIN_BYTES = 1024
const PART_MAX_BYTES = 16 * 1024
const FEW_PIECES = 16

/** `countPiece` returns whether the part has many. */
type Reading = { readonly countPiece: () => boolean; readonly setSize: (bytes: number) => void }
const READING = Symbol('how a connection is read')
type PacedConnection = Duplex & { [READING]?: Reading }

function readingOf(connection: PacedConnection | null): Reading | undefined {
  return connection?.[READING]
}

/** Gives Node what is read of a connection at a pace. Call it before Node gets the connection. */
export function paceReads(connection: Duplex, pace: Pace): void {
  const push = connection.push.bind(connection)
  const read = connection._read.bind(connection)
  let held: Buffer[] | null = null
  let hasEnded = false
  let mayGoOn = true
  let [size, pieces] = [PART_MIN_BYTES, 0]

  const pushParts = (bytes: Buffer): boolean => {
    let wantsMore = true
    for (let at = 0; at < bytes.length;) {
      if (connection.destroyed) return false // the rest is of no use
      if (!mayGoOn || pace.isTurnFull() || (at > 0 && connection.isPaused())) {
        hold(bytes.subarray(at))
        return false
      }
      const part = bytes.subarray(at, at + size)
      at += part.length
      pieces = 0
      wantsMore = push(part)
      size = pieces > FEW_PIECES ? PART_MIN_BYTES : Math.max(size, Math.min(2 * size, PART_MAX_BYTES))
    }
    return wantsMore
  }

  const hold = (rest: Buffer): void => {
    held = [rest]
    if (mayGoOn && !pace.isTurnFull()) connection.once('resume', goOn)
    else
      void pace
        .wait(() => connection.destroyed)
        .then(() => void (connection.isPaused() ? connection.once('resume', goOn) : goOn()))
  }

  const goOn = (): void => {
    const rest = Buffer.concat(held ?? [])
    held = null
    mayGoOn = true
    const wantsMore = pushParts(rest)
    if (held !== null) return
    if (hasEnded) push(null)
    else if (wantsMore) read(0)
  }

  connection.push = (piece: Buffer | null) => {
    if (held === null) return piece === null ? push(null) : pushParts(piece)
    if (piece === null) hasEnded = true
    else held.push(piece)
    return false
  }
  connection._read = (bytes) => void (held === null && read(bytes))
  const reading: Reading = {
    countPiece() {
      pieces += 1
      if (!pace.count()) mayGoOn = false
      return pieces > FEW_PIECES
    },
    setSize(bytes) {
      size = bytes
    },
  }
  Object.assign(connection, { [READING]: reading })
}

/** Begins to read a reply of a connection. */
export function beginReply(connection: Duplex): void {
  readingOf(connection)?.setSize(PART_MIN_BYTES)
}

/** Reads what follows whole: nothing in it is parsed. */
export function readWhole(connection: Duplex): void {
  readingOf(connection)?.setSize(Infinity)
}

/** Counts a reply that comes before the real one. */
export function countInformation(connection: Duplex | null): void {
  readingOf(connection)?.countPiece()
}

/** Counts the chunks of a reply, and joins small ones that come in the same turn. The first go on at once, with the head of the reply. */
export function countChunks(reply: IncomingMessage): void {
  const push = reply.push.bind(reply)
  const reading = readingOf(reply.socket)
  if (reply.headers['transfer-encoding'] === undefined) readWhole(reply.socket)
  const joiner = makePieceJoiner((joined) => void (reply.destroyed || push(joined)))
  reply.push = (piece: Buffer | null) => {
    const hasMany = reading?.countPiece() ?? false
    if (hasMany && piece !== null && joiner.keepSmall(piece)) return true
    joiner.pushKept()
    return push(piece)
  }
}

import type { IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import { makePieceJoiner } from '../lib/streams/join-pieces.ts'
import { paceReads, PART_MIN_BYTES, type PacedReads } from '../lib/streams/pace-reads.ts'
import type { Pace } from '../lib/turns/piece-pacer.ts'

/**
 * Paces the replies of sandboxes. Node parses all that it has read of a connection in one turn of the event loop, and calls its code for
 * each chunk of a body. 64 KiB have 10,900 chunks of a byte. So its parser gets reads in parts, and the rest waits after a
 * part with many chunks.
 */

/** Such a part has up to 2,730 chunks. */
const PART_MAX_BYTES = 16 * 1024

const READS = Symbol('how a connection is read')
type PacedConnection = Duplex & { [READS]?: PacedReads }

function readsOf(connection: PacedConnection | null): PacedReads | undefined {
  return connection?.[READS]
}

/** Gives Node the reads of a connection in parts. Call it before Node gets the connection. */
export function paceReplies(connection: Duplex, pace: Pace): void {
  Object.assign(connection, { [READS]: paceReads(connection, { pace, partMaxBytes: PART_MAX_BYTES }) })
}

/** Begins to read a reply of a connection. */
export function beginReply(connection: Duplex): void {
  readsOf(connection)?.setSize(PART_MIN_BYTES)
}

/** Reads what follows whole, as a body that isn't chunked: nothing in it is parsed. */
export function readWhole(connection: Duplex): void {
  readsOf(connection)?.setSize(Infinity)
}

/** Counts a reply that comes before the real one. */
export function countInformation(connection: Duplex | null): void {
  readsOf(connection)?.count()
}

/** Counts the chunks of a reply, and joins small ones that come in the same turn. The first go on at once, with the head of the reply. */
export function countChunks(reply: IncomingMessage): void {
  const push = reply.push.bind(reply)
  const reads = readsOf(reply.socket)
  if (reply.headers['transfer-encoding'] === undefined) readWhole(reply.socket)
  const joiner = makePieceJoiner((joined) => void (reply.destroyed || push(joined)))
  reply.push = (piece: Buffer | null) => {
    const hasMany = reads?.count() ?? false
    if (hasMany && piece !== null && joiner.keepSmall(piece)) return true
    joiner.pushKept()
    return push(piece)
  }
}

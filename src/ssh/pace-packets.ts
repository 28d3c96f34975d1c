import type { Socket } from 'node:net'
import type ssh2 from 'ssh2'
import { paceReads, type PacedReads } from '../lib/streams/pace-reads.ts'
import type { Pace } from '../lib/turns/piece-pacer.ts'
import { countReceived, isExchangingKeys } from './protocol-state.ts'

/**
 * How many pieces of other streams a packet counts for: a chunk of a body takes 3 to 5 µs, and a request of SSH with its reply up to 75.
 * The slowest key exchange that the server offers takes 550, and has three packets.
 */
const PIECES = { ofPacket: 8, ofKeyExchangePacket: 64 }

/** Such a part has up to 256 packets, and 113 after sign-in. */
const PART_MAX_BYTES = 4 * 1024

/** Gives the library the reads of a connection in parts. Call it before the library has the connection. */
export function pacePackets(socket: Socket, pace: Pace): PacedReads {
  return paceReads(socket, { pace, partMaxBytes: PART_MAX_BYTES })
}

/**
 * Counts the packets of such a connection. Call it when the library has the connection. The library handles all packets of a part in
 * one turn of the event loop.
 */
export function countPackets(connection: ssh2.Connection, socket: Socket, reads: PacedReads): void {
  let before = 0
  socket.prependListener('data', () => {
    socket.cork()
  })
  socket.on('data', () => {
    socket.uncork() // the replies to the packets of a part are sent together
    const received = countReceived(connection)
    const packets = Math.max(received - before, 0) // with new keys, the count may begin anew
    before = received
    const pieces = isExchangingKeys(connection) ? PIECES.ofKeyExchangePacket : PIECES.ofPacket
    if (packets > 0) reads.count(packets * pieces)
  })
}

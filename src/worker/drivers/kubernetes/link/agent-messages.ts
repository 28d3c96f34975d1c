/** Encodes and splits the messages of `guest/agent.pl`: a length (u32), a type (one byte), the number of a process (u32), and fields. */

/** A message of the agent. `fields` may share the memory of a larger buffer. */
export type AgentMessage = { readonly type: string; readonly number: number; readonly fields: Buffer }

const HEADER_BYTES = 9
/** What the length counts beside the fields. */
const COUNTED_BYTES = HEADER_BYTES - 4
/** The agent sends at most 64 KiB of output in a message. */
const MESSAGE_MAX_BYTES = 128 * 1024

/** The agent broke the protocol. */
export class AgentProtocolError extends Error {}

/** Encodes a message to the agent. */
export function encodeAgentMessage(type: string, number: number, fields: Buffer): Buffer {
  const header = Buffer.alloc(HEADER_BYTES)
  header.writeUInt32BE(COUNTED_BYTES + fields.length, 0)
  header.write(type, 4, 'latin1')
  header.writeUInt32BE(number, 5)
  return Buffer.concat([header, fields])
}

/** Splits a byte stream, which arrives in pieces, into messages. Keeps at most one unfinished message in memory. */
type AgentMessageReader = {
  /** Yields the messages that a piece completes. Throws `AgentProtocolError` for a length that no message has. */
  push(piece: Buffer): Generator<AgentMessage, void, undefined>
}

/** Creates a reader for a new stream. Take all messages of a piece before the next one is pushed. */
export function makeAgentMessageReader(): AgentMessageReader {
  const header = Buffer.alloc(HEADER_BYTES)
  let headerBytes = 0
  let fields: Buffer | null = null
  let fieldBytes = 0

  const end = (complete: Buffer): AgentMessage => {
    headerBytes = 0
    fields = null
    return { type: header.toString('latin1', 4, 5), number: header.readUInt32BE(5), fields: complete }
  }
  return {
    *push(piece) {
      for (let at = 0; at < piece.length;) {
        if (fields === null) {
          const copied = piece.copy(header, headerBytes, at)
          headerBytes += copied
          at += copied
          if (headerBytes < HEADER_BYTES) return
          const wanted = fieldBytesIn(header)
          if (piece.length - at >= wanted) {
            at += wanted
            yield end(piece.subarray(at - wanted, at))
            continue
          }
          fields = Buffer.allocUnsafe(wanted)
          fieldBytes = 0
        }
        const copied = piece.copy(fields, fieldBytes, at)
        fieldBytes += copied
        at += copied
        if (fieldBytes === fields.length) yield end(fields)
      }
    },
  }
}

function fieldBytesIn(header: Buffer): number {
  const length = header.readUInt32BE(0)
  if (length < COUNTED_BYTES || length > MESSAGE_MAX_BYTES) throw new AgentProtocolError('a length that no message has')
  return length - COUNTED_BYTES
}

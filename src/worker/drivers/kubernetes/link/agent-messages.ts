import { makeMessageReader, type MessageReader } from '../../../../channel/length-prefixed.ts'

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

/** Creates a reader for a new stream. It throws `AgentProtocolError`. */
export function makeAgentMessageReader(): MessageReader<AgentMessage> {
  return makeMessageReader({
    headBytes: HEADER_BYTES,
    checkLength(length) {
      const isPossible = length >= COUNTED_BYTES && length <= MESSAGE_MAX_BYTES
      if (!isPossible) throw new AgentProtocolError('a length that no message has')
    },
    toMessage: (head, fields) => ({ type: head.toString('latin1', 4, 5), number: head.readUInt32BE(5), fields }),
  })
}

/** A message that begins with a length (u32), which counts all that comes after it: the rest of a head, and a body. */
type MessageFormat<Message> = {
  /** The size of the head, with the length. */
  readonly headBytes: number
  /** Throws for a length that no message has. The start of the next message is then unknown. */
  readonly checkLength: (length: number) => void
  /** Makes a message of its parts. The head is used again for the next one. The body may share the memory of a larger buffer. */
  readonly toMessage: (head: Buffer, body: Buffer) => Message
}

/**
 * Splits a byte stream, which arrives in pieces, into messages. Keeps at most one unfinished message in memory, and copies
 * only bodies that arrive in several pieces.
 */
export type MessageReader<Message> = {
  /**
   * Accepts the next piece of the stream and yields the messages that it completes. Take them all before the next piece. After a
   * length that `checkLength` refused, the reader is unusable.
   */
  push(piece: Buffer): Generator<Message, void, undefined>
}

/** Creates a reader for a new stream. */
export function makeMessageReader<Message>(format: MessageFormat<Message>): MessageReader<Message> {
  const { headBytes, checkLength, toMessage } = format
  const head = Buffer.alloc(headBytes)
  let filled = 0
  let body: Buffer | null = null
  let bodyBytes = 0

  const end = (complete: Buffer): Message => {
    filled = 0
    body = null
    return toMessage(head, complete)
  }
  return {
    *push(piece) {
      for (let at = 0; at < piece.length;) {
        if (body === null) {
          const copied = piece.copy(head, filled, at)
          filled += copied
          at += copied
          if (filled >= 4) checkLength(head.readUInt32BE(0))
          if (filled < headBytes) return
          const wanted = head.readUInt32BE(0) - (headBytes - 4)
          if (piece.length - at >= wanted) {
            at += wanted
            yield end(piece.subarray(at - wanted, at))
            continue
          }
          body = Buffer.allocUnsafe(wanted)
          bodyBytes = 0
        }
        const copied = piece.copy(body, bodyBytes, at)
        bodyBytes += copied
        at += copied
        if (bodyBytes === body.length) yield end(body)
      }
    },
  }
}

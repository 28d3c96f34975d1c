import type { Writable } from 'node:stream'

/**
 * The way to the client. What is sent is queued without a limit of its own, so whoever has much to say asks `hasCapacity`
 * and waits for its turn; the waiters' order makes a busy session leave room for the others.
 */
export type Outbox = {
  send(buffers: readonly Buffer[]): void
  readonly canWrite: boolean
  readonly queuedBytes: number
  whenCanWrite(turn: () => void): void
  /** Forgets the waiters; sends nothing more. */
  close(): void
}

/** An outbox over a stream. `onDrain` is called whenever the stream has taken what was queued. */
export function makeOutbox(stream: Writable, onDrain: () => void): Outbox {
  let waiting: (() => void)[] = []
  let isOpen = true
  const hasRoom = (): boolean => isOpen && !stream.writableNeedDrain
  stream.on('drain', () => {
    onDrain()
    while (hasRoom()) {
      const turn = waiting.shift()
      if (turn === undefined) return
      turn()
    }
  })
  return {
    send(buffers) {
      if (!isOpen || stream.destroyed || stream.writableEnded) return
      stream.cork()
      for (const buffer of buffers) stream.write(buffer)
      stream.uncork()
    },
    get canWrite() {
      return hasRoom()
    },
    get queuedBytes() {
      return stream.writableLength
    },
    whenCanWrite(turn) {
      if (hasRoom()) turn()
      else if (isOpen) waiting.push(turn)
    },
    close() {
      isOpen = false
      waiting = []
    },
  }
}

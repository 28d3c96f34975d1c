import type { Readable } from 'node:stream'
import type { Connection } from './connection.ts'

/** Takes the data of the agent for one stream of a session, at the pace of the stream's reader. */
export type Intake = {
  /** Adds data to the stream. Pauses the whole channel while too much data is unread. */
  push(stream: Readable, data: Buffer): void
  /** Resumes the channel. Call it from the stream's `read` and `destroy`. May be repeated. */
  resume(): void
}

/** How many pieces a session may keep unread beyond the buffer of its stream. A piece of a byte takes some 250 bytes of memory. */
const MAX_UNREAD_PIECES = 1024

/** Creates the intake of one stream. */
export function makeIntake(connection: Connection): Intake {
  let release: (() => void) | null = null
  let pieces = 0
  return {
    push(stream, data) {
      if (data.length === 0 || stream.destroyed || stream.readableEnded) return
      stream.push(data)
      pieces += 1
      if (stream.readableLength > connection.sessionBufferBytes || pieces > MAX_UNREAD_PIECES)
        release ??= connection.pauseInput()
    },
    resume() {
      pieces = 0
      release?.()
      release = null
    },
  }
}

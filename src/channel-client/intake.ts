import type { Readable } from 'node:stream'
import type { Connection } from './connection.ts'

/** Takes the data of the agent for one stream of a session, at the pace of the stream's reader. */
export type Intake = {
  /** Adds data to the stream. Pauses the whole channel while too much data is unread. */
  push(stream: Readable, data: Buffer): void
  /** Resumes the channel. Call it from the stream's `read` and `destroy`. May be repeated. */
  resume(): void
}

/** Creates the intake of one stream. */
export function makeIntake(connection: Connection): Intake {
  let release: (() => void) | null = null
  return {
    push(stream, data) {
      if (data.length === 0 || stream.destroyed || stream.readableEnded) return
      stream.push(data)
      if (stream.readableLength > connection.sessionBufferBytes) release ??= connection.pauseInput()
    },
    resume() {
      release?.()
      release = null
    },
  }
}

import type { Readable } from 'node:stream'
import type { WritePiece } from './channel-writer.ts'

/**
 * Copies a stream of the sandbox to an SSH channel, at the pace of the client. Resolves at the end of the stream, and when
 * the channel is closed. Never rejects. It does not end the channel.
 */
export async function pump(from: Readable, write: WritePiece, closed: AbortSignal): Promise<void> {
  const onClosed = (): void => {
    from.destroy()
  }
  closed.addEventListener('abort', onClosed, { once: true })
  if (closed.aborted) onClosed()
  try {
    for await (const piece of from) {
      if (closed.aborted || !(piece instanceof Buffer)) break
      await write(piece)
    }
  } catch {
    // the stream was destroyed: its owner knows why
  } finally {
    closed.removeEventListener('abort', onClosed)
  }
}

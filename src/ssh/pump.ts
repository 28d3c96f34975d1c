import type { Socket } from 'node:net'
import type { Readable, Writable } from 'node:stream'

/**
 * Above this many unsent bytes on the socket, no more is written. An SSH client announces a window for each channel, but
 * one that doesn't read could announce windows without limit.
 */
const UNSENT_MAX_BYTES = 1024 * 1024

/** The client's socket, and the signal that aborts when the channel is closed. */
type PumpClient = { readonly socket: Socket; readonly closed: AbortSignal }

/**
 * Copies a stream of the sandbox to an SSH channel, at the pace of the client. Resolves at the end of the stream, and when
 * the channel is closed. Never rejects. It does not end the channel.
 */
export async function pump(from: Readable, to: Writable, client: PumpClient): Promise<void> {
  const { closed } = client
  const onClosed = (): void => {
    from.destroy()
  }
  closed.addEventListener('abort', onClosed, { once: true })
  if (closed.aborted) onClosed()
  try {
    for await (const piece of from) {
      if (closed.aborted || !(piece instanceof Buffer)) break
      to.write(piece)
      await waitUntilWritable(to, client)
    }
    if (to.writableLength > 0)
      await new Promise<void>((resolve) => {
        to.write(Buffer.alloc(0), () => {
          resolve()
        })
        closed.addEventListener(
          'abort',
          () => {
            resolve()
          },
          { once: true },
        )
      })
  } catch {
    // the stream was destroyed: its owner knows why
  } finally {
    closed.removeEventListener('abort', onClosed)
  }
}

/** Waits until a channel and its socket take more. Resolves early when the channel is closed. Never rejects. */
export async function waitUntilWritable(to: Writable, { socket, closed }: PumpClient): Promise<void> {
  if (to.writableNeedDrain) await waitFor(to, 'drain', closed)
  while (socket.writableLength > UNSENT_MAX_BYTES && !closed.aborted) await waitFor(socket, 'drain', closed)
}

function waitFor(stream: Writable, event: 'drain', closed: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      stream.off(event, done)
      closed.removeEventListener('abort', done)
      resolve()
    }
    stream.on(event, done)
    closed.addEventListener('abort', done, { once: true })
    if (closed.aborted) done()
  })
}

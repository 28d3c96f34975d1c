import type { Socket } from 'node:net'
import type { Writable } from 'node:stream'
import type ssh2 from 'ssh2'
import { makeSemaphore } from '../lib/turns/semaphore.ts'

/**
 * Above this many unsent bytes on the socket, no more is written. An SSH client announces a window for each channel, but
 * one that doesn't read could announce windows without limit.
 */
const UNSENT_MAX_BYTES = 1024 * 1024

/** The client's socket, and the signal that aborts when the channel is closed. */
export type Receiver = { readonly socket: Socket; readonly closed: AbortSignal }

/** Writes to a channel. Resolves when the client has taken the piece, or when the channel is closed. Never rejects. */
export type WritePiece = (piece: Buffer) => Promise<void>

/**
 * Makes the functions that write to the two outputs of a channel, one piece at a time. If both outputs waited for the client's window,
 * the library would continue only one of them. It also would send an earlier piece of `stdout` again in place of a waiting piece
 * of `stderr` (`CHANNEL_WINDOW_ADJUST` in `lib/server.js` of ssh2 1.17).
 */
export function makeChannelWriter(
  channel: ssh2.ServerChannel,
  receiver: Receiver,
): { readonly stdout: WritePiece; readonly stderr: WritePiece } {
  const turns = makeSemaphore(1)
  const writeTo =
    (output: Writable): WritePiece =>
    (piece) =>
      turns.run(async () => {
        await settled(receiver.closed, (done) => output.write(piece, done))
        Object.assign(channel, { _chunk: undefined, _chunkcb: undefined })
        await waitUntilWritable(output, receiver)
      })
  return { stdout: writeTo(channel), stderr: writeTo(channel.stderr) }
}

/** Waits until a channel and its socket take more. Resolves early when the channel is closed. Never rejects. */
export async function waitUntilWritable(to: Writable, { socket, closed }: Receiver): Promise<void> {
  if (to.writableNeedDrain) await drain(to, closed)
  while (socket.writableLength > UNSENT_MAX_BYTES && !closed.aborted) await drain(socket, closed)
}

async function drain(stream: Writable, closed: AbortSignal): Promise<void> {
  let onDrain = (): void => undefined
  await settled(closed, (done) => {
    onDrain = done
    stream.on('drain', done)
  })
  stream.off('drain', onDrain)
}

/** Resolves once `begin` has called its argument, or when `closed` aborts. */
function settled(closed: AbortSignal, begin: (done: () => void) => void): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      closed.removeEventListener('abort', done)
      resolve()
    }
    closed.addEventListener('abort', done, { once: true })
    begin(done)
    if (closed.aborted) done()
  })
}

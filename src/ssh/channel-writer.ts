import type { EventEmitter } from 'node:events'
import type { Socket } from 'node:net'
import type { Writable } from 'node:stream'
import type ssh2 from 'ssh2'
import { makeSemaphore } from '../lib/turns/semaphore.ts'
import { isExchangingKeys } from './protocol-state.ts'

/**
 * Above this many unsent bytes on the socket, no more is written. An SSH client announces a window for each channel, but
 * one that doesn't read could announce windows without limit.
 */
const UNSENT_MAX_BYTES = 1024 * 1024

/** The client's connection and its socket, and the signal that aborts when the channel is closed. */
export type Receiver = {
  readonly connection: ssh2.Connection
  readonly socket: Socket
  readonly closed: AbortSignal
}

/** Writes to a channel. Resolves when the client has taken the piece, or when the channel is closed. Never rejects. */
export type WritePiece = (piece: Buffer) => Promise<void>

/**
 * Makes the functions that write to the two outputs of a channel, one piece at a time. If both outputs waited for the
 * client's window, the library would continue only one of them. It also would send an earlier piece of `stdout` again in
 * place of a waiting piece of `stderr` (`CHANNEL_WINDOW_ADJUST` in `lib/server.js` of ssh2 1.17).
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

/**
 * Waits until a channel, its connection and its socket take more. Resolves early when the channel is closed. Never
 * rejects. While keys are exchanged, the library keeps all that is written, and it is the client that ends the exchange.
 */
export async function waitUntilWritable(to: Writable, { connection, socket, closed }: Receiver): Promise<void> {
  if (to.writableNeedDrain) await next(to, 'drain', closed)
  while (!closed.aborted) {
    if (isExchangingKeys(connection)) await next(connection, 'rekey', closed)
    else if (socket.writableLength > UNSENT_MAX_BYTES) await next(socket, 'drain', closed)
    else return
  }
}

/** Waits for an event. */
async function next(emitter: EventEmitter, event: 'drain' | 'rekey', closed: AbortSignal): Promise<void> {
  let onEvent = (): void => undefined
  await settled(closed, (done) => {
    onEvent = done
    emitter.on(event, done)
  })
  emitter.off(event, onEvent)
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

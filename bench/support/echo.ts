import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { WebSocket, type RawData } from 'ws'

/** A bare WebSocket connection to an echo server in a process of its own. */
export type EchoServer = AsyncDisposable & {
  /** Sends this many bytes. Resolves when all of them have come back. */
  carry(bytes: number): Promise<void>
}

/** The size of the largest message of a command channel. */
const MESSAGE_BYTES = 1024 * 1024
/** The maximum number of bytes that are sent and have not come back yet. */
const WINDOW_BYTES = 8 * 1024 * 1024

/** Starts the server and connects to it. */
export async function startEchoServer(): Promise<EchoServer> {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'echo-server.ts')], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const [line] = await once(createInterface(child.stdout), 'line')
  const socket = new WebSocket(`ws://127.0.0.1:${String(line)}`, { perMessageDeflate: false })
  await once(socket, 'open')
  const message = Buffer.alloc(MESSAGE_BYTES, 'sandyard ')
  return {
    carry(bytes) {
      const { promise, resolve, reject } = Promise.withResolvers<void>()
      let sent = 0
      let received = 0
      const fill = (): void => {
        while (sent < bytes && sent - received < WINDOW_BYTES) {
          socket.send(message, { binary: true })
          sent += MESSAGE_BYTES
        }
      }
      const take = (data: RawData): void => {
        received += Buffer.isBuffer(data) ? data.length : 0
        if (received < bytes) {
          fill()
          return
        }
        socket.off('message', take)
        resolve()
      }
      socket.on('message', take)
      socket.once('error', reject)
      fill()
      return promise
    },
    async [Symbol.asyncDispose]() {
      socket.terminate()
      child.kill('SIGTERM')
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
    },
  }
}

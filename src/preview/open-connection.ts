import type { Duplex } from 'node:stream'
import { createWebSocketStream } from 'ws'
import { startChannelClient } from '../channel-client/channel-client.ts'
import { channelEndOfWorkerCode } from '../contract/sandboxes/channel-ends.ts'
import { openPreviewChannel } from '../control/previews/open-preview-channel.ts'

type Running = Parameters<typeof openPreviewChannel>[1]

const BUFFER_BYTES = 256 * 1024
/** How long a sandbox may take to connect. */
const CONNECT_LIMIT_MS = 10_000

/** Opens a connection to a port of a running sandbox. Rejects with `ConnectFailure`, and with a problem as `openPreviewChannel` does. */
export async function openConnection(
  deps: Parameters<typeof openPreviewChannel>[0],
  sandbox: Running,
  port: number,
): Promise<Duplex> {
  const socket = await openPreviewChannel(deps, sandbox)
  const buffers = { readableHighWaterMark: BUFFER_BYTES, writableHighWaterMark: BUFFER_BYTES }
  const client = startChannelClient(createWebSocketStream(socket, buffers), () => channelEndOfWorkerCode(0))
  const limit = AbortSignal.timeout(CONNECT_LIMIT_MS)
  const giveUp = (): void => {
    client.close()
  }
  limit.addEventListener('abort', giveUp, { once: true })
  try {
    await client.ready
    const stream = await client.connect(port, undefined, limit)
    stream.once('close', () => {
      client.close()
    })
    return stream
  } catch (error) {
    client.close()
    throw error
  } finally {
    limit.removeEventListener('abort', giveUp)
    client.closed.then(
      () => {
        socket.terminate()
      },
      () => undefined,
    )
  }
}

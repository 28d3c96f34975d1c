import type { Duplex } from 'node:stream'
import { createWebSocketStream } from 'ws'
import { startChannelClient } from '../channel-client/channel-client.ts'
import { ConnectFailure, LOOPBACKS } from '../channel-client/tcp.ts'
import { channelEndOfWorkerCode } from '../contract/sandboxes/channel-ends.ts'
import { openPreviewChannel } from '../control/previews/open-preview-channel.ts'
import type { NearWorkers } from '../control/streams/near-workers.ts'
import type { PiecePacer } from '../lib/turns/piece-pacer.ts'

type OpenDeps = Parameters<typeof openPreviewChannel>[0] & {
  readonly nearWorkers: NearWorkers
  readonly pacer: PiecePacer
}
type Running = Parameters<typeof openPreviewChannel>[1]

const BUFFER_BYTES = 256 * 1024
/** How long a sandbox may take to connect. */
const CONNECT_LIMIT_MS = 10_000

/**
 * Opens a connection to a port of a running sandbox: directly if its worker is on this machine and hands over sockets,
 * else over a channel. Rejects with `ConnectFailure`, and with a problem as `openPreviewChannel` does.
 */
export async function openConnection(deps: OpenDeps, sandbox: Running, port: number): Promise<Duplex> {
  const limit = AbortSignal.timeout(CONNECT_LIMIT_MS)
  return (await connectNear(deps, sandbox, { port, limit })) ?? (await connectByChannel(deps, sandbox, { port, limit }))
}

type Dialled = { readonly port: number; readonly limit: AbortSignal }

/**
 * Half as many requests a second pass through a channel: each byte crosses the socket between server and worker twice, in frames
 * (2026-11).
 */
async function connectNear(deps: OpenDeps, sandbox: Running, { port, limit }: Dialled): Promise<Duplex | null> {
  const connect = deps.nearWorkers.of(sandbox.worker_id)
  if (connect === undefined) return null
  const release = deps.channelLimit.acquire(sandbox) // it counts as a channel of the sandbox
  let refusal: ConnectFailure | null = null
  for (const host of LOOPBACKS) {
    try {
      const stream = await connect(sandbox.run_id, { host, port }, limit)
      if (stream === null) break
      stream.once('close', release)
      return stream
    } catch (error) {
      const failure = new ConnectFailure(error instanceof Error ? error.message : '')
      if (failure.kind !== 'refused') break // the channel says what is wrong
      refusal ??= failure
    }
  }
  release()
  if (refusal !== null) throw refusal
  return null
}

async function connectByChannel(deps: OpenDeps, sandbox: Running, { port, limit }: Dialled): Promise<Duplex> {
  const socket = await openPreviewChannel(deps, sandbox)
  const buffers = { readableHighWaterMark: BUFFER_BYTES, writableHighWaterMark: BUFFER_BYTES }
  const client = startChannelClient(createWebSocketStream(socket, buffers), {
    whyClosed: () => channelEndOfWorkerCode(0),
    pace: deps.pacer.paceOf(sandbox.org_id),
  })
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

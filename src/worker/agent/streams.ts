import type { Duplex } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createWebSocketStream, type WebSocket } from 'ws'
import type { VolumeFiles } from '../../contract/volumes/volume-protocol.ts'
import type { SnapshotAnswer, SnapshotTask } from '../../contract/snapshots/snapshot-protocol.ts'
import type { StreamPurpose, DesiredVolume } from '../../contract/workers/worker-protocol.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import { joinSignals } from '../../lib/join-signals.ts'
import type { Log } from '../../lib/log.ts'
import type { Driver } from '../drivers/driver.ts'
import type { ControlPlane } from './control-plane.ts'
import { encodeLogLines } from '../logs/log-lines.ts'
import type { SandboxLogs } from '../logs/logs.ts'
import { encodeMetrics } from '../metrics/encode-metrics.ts'
import type { SandboxMetrics } from '../metrics/sandbox-metrics.ts'
import { pipeChannel } from '../processes/pipe-channel.ts'
import { SnapshotFailure } from '../snapshot-failure.ts'
import { serveVolume } from '../volumes/serve-volume.ts'

export type StreamDeps = {
  readonly driver: Driver
  readonly log: Log
  readonly logs: Pick<SandboxLogs, 'read'>
  readonly metrics: Pick<SandboxMetrics, 'read' | 'subscribe' | 'latest'>
  readonly openFiles: (volume: DesiredVolume) => Promise<VolumeFiles>
  /** Called after each request that may have changed the files of a volume. */
  readonly onFilesChanged: () => void
  readonly controlPlane: Pick<ControlPlane, 'releaseBytes'>
}

type PurposeOf<Kind extends StreamPurpose['kind']> = Extract<StreamPurpose, { readonly kind: Kind }>

/**
 * A request to serve a stream. `connect` resolves with the stream's connection, which is already open or is now dialled
 * with a ticket.
 */
export type StreamRequest<Asked = StreamPurpose> = {
  readonly purpose: Asked
  readonly connect: () => Promise<WebSocket>
}

/** Serves a stream until either side ends it or the signal aborts. A failure is logged and ends the stream. */
export function beginStream(deps: StreamDeps, request: StreamRequest, signal: AbortSignal): void {
  serveStream(deps, request, signal).catch((error: unknown) => {
    deps.log.warn({ error, ...request.purpose }, 'a stream could not be opened')
  })
}

function serveStream(deps: StreamDeps, { purpose: asked, connect }: StreamRequest, signal: AbortSignal): Promise<void> {
  switch (asked.kind) {
    case 'agent':
      return joinChannel(deps, { purpose: asked, connect }, signal)
    case 'volume':
      return serveFiles(deps, { purpose: asked, connect }, signal)
    case 'logs':
      return sendStream(connect, signal, (over) =>
        encodeLogLines(deps.logs.read(asked.sandbox_id, asked.query, over), asked.query),
      )
    case 'metrics':
      return sendStream(connect, signal, (over) => encodeMetrics(deps.metrics, asked.query, over))
    case 'snapshot':
      return answerSnapshotTask(deps, { purpose: asked, connect }, signal)
    case 'snapshot_files':
      return sendStream(connect, signal, (over) => deps.driver.snapshots?.files?.(asked.snapshot_id, over))
  }
}

/** Connects the stream to a run's command channel. */
async function joinChannel(
  deps: StreamDeps,
  { purpose: asked, connect }: StreamRequest<PurposeOf<'agent'>>,
  signal: AbortSignal,
): Promise<void> {
  // Opens the connection and the run's channel at the same time, which shortens the client's wait.
  const dialling = connect().then((socket) => ({ socket, destroy: () => socket.terminate() }))
  const [{ socket }, channel] = await bothOrNone(dialling, deps.driver.openChannel(asked.run_id))
  await pipeChannel(socket, channel, { signal })
}

/** Connects, and returns the connection as a Node stream. Used for files and logs. */
async function dialStream(connect: StreamRequest['connect']): Promise<Duplex> {
  const stream = createWebSocketStream(await connect())
  // An error before the stream is in use destroys the stream. The code that uses the stream next then finds it
  // destroyed.
  stream.on('error', () => stream.destroy())
  return stream
}

/** Answers requests for the files of a volume. */
async function serveFiles(
  deps: StreamDeps,
  { purpose: asked, connect }: StreamRequest<PurposeOf<'volume'>>,
  signal: AbortSignal,
): Promise<void> {
  const opening = deps.openFiles(asked.volume).then((files) => ({ files, destroy: () => undefined }))
  const [client, { files }] = await bothOrNone(dialStream(connect), opening)
  const hangUp = (): void => {
    client.destroy()
  }
  signal.addEventListener('abort', hangUp, { once: true })
  if (signal.aborted) hangUp() // the signal aborted while the stream was being opened
  try {
    const { releaseBytes: release } = deps.controlPlane
    await serveVolume(client, files, { log: deps.log, onChanged: deps.onFilesChanged, release })
  } catch (error) {
    if (!isHangUp(error)) throw error
  } finally {
    signal.removeEventListener('abort', hangUp)
    client.destroy()
  }
}

/**
 * Sends what `read` returns, whose signal aborts when the stream is over. The control plane closes the stream when it has enough. The
 * stream ends early if there is nothing to read, or if that fails.
 */
async function sendStream(
  connect: StreamRequest['connect'],
  signal: AbortSignal,
  read: (over: AbortSignal) => AsyncIterable<Buffer | string> | undefined,
): Promise<void> {
  const client = await dialStream(connect)
  const gone = new AbortController()
  const leave = (): void => {
    gone.abort(new Error('the reader left'))
  }
  client.once('close', leave)
  using either = joinSignals(signal, gone.signal)
  try {
    client.resume() // reads the end of the stream; the control plane sends nothing else
    const source = read(either.signal)
    if (source !== undefined) await pipeline(source, client, { signal })
  } catch (error) {
    if (!isHangUp(error) && !gone.signal.aborted) throw error
  } finally {
    client.destroy()
    leave() // the close comes later, when a source that waits would no longer be told
  }
}

/** Does a task about a snapshot and sends the answer. The task goes on if the stream ends before it. */
async function answerSnapshotTask(
  { driver, log }: StreamDeps,
  { purpose: { task }, connect }: StreamRequest<PurposeOf<'snapshot'>>,
  signal: AbortSignal,
): Promise<void> {
  const answering = doSnapshotTask(driver, log, task)
  const client = await dialStream(connect)
  try {
    client.resume() // reads the end of the stream; the control plane sends nothing else
    await pipeline([JSON.stringify(await answering)], client, { signal })
  } catch (error) {
    if (!isHangUp(error)) throw error
  } finally {
    client.destroy()
  }
}

async function doSnapshotTask({ snapshots }: Driver, log: Log, task: SnapshotTask): Promise<SnapshotAnswer> {
  try {
    if (snapshots === undefined)
      throw new SnapshotFailure('unsupported', "this worker's driver can't make snapshots of disks")
    if (task.do === 'take') return { taken: await snapshots.take(task) }
    await snapshots.discard(task.snapshot_id)
    return { taken: null }
  } catch (error) {
    const { code, message } = SnapshotFailure.of(error, 'the worker failed')
    log.error({ error, ...task }, 'a task about a snapshot failed')
    return { failed: { code, message } }
  }
}

type Destroyable = { destroy(): void }

async function bothOrNone<A extends Destroyable, B extends Destroyable>(a: Promise<A>, b: Promise<B>): Promise<[A, B]> {
  const [first, second] = await Promise.allSettled([a, b])
  if (first.status === 'fulfilled' && second.status === 'fulfilled') return [first.value, second.value]
  if (first.status === 'fulfilled') first.value.destroy()
  if (second.status === 'fulfilled') second.value.destroy()
  throw new Error('a stream could not be connected', {
    cause: first.status === 'rejected' ? first.reason : second.status === 'rejected' ? second.reason : undefined,
  })
}

/** Whether an error only means that the client closed the connection. Every stream normally ends this way. */
function isHangUp(error: unknown): boolean {
  return hasErrorCode(error, 'ERR_STREAM_PREMATURE_CLOSE', 'ABORT_ERR', 'ECONNRESET')
}

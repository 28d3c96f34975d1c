import type { WebSocket } from 'ws'
import type { RunId, WorkerId } from '../../domain/ids.ts'
import type { SandboxKey } from '../../domain/sandboxes/sandbox.ts'
import type { ConcurrencyLimit } from '../requests/concurrency-limit.ts'
import { openWorkerStream, type StreamTarget } from '../streams/open-worker-stream.ts'

type OpenDeps = {
  readonly dialChannel: (target: StreamTarget, signal: AbortSignal) => Promise<WebSocket | null>
  readonly channelLimit: ConcurrencyLimit<SandboxKey>
}

const MESSAGES = {
  late: 'the worker of this sandbox did not answer',
  full: 'too many channels are being opened',
} as const

/**
 * Opens a command channel for one connection of a preview. It counts towards the limits of channels. The worker closes it when the run ends.
 * Each connection has a channel of its own: sessions of one channel wait for each other, and a client that reads slowly would stop all.
 * Throws `rate_limited` and `unavailable`.
 */
export async function openPreviewChannel(
  { dialChannel, channelLimit }: OpenDeps,
  { run_id, worker_id, ...sandbox }: SandboxKey & { readonly run_id: RunId; readonly worker_id: WorkerId },
): Promise<WebSocket> {
  const release = channelLimit.acquire(sandbox)
  const target = { worker_id, purpose: { kind: 'agent', run_id } } as const
  const never = new AbortController().signal
  try {
    const socket = await openWorkerStream({ openStream: dialChannel }, target, { signal: never, messages: MESSAGES })
    socket.once('close', release)
    return socket
  } catch (error) {
    release()
    throw error
  }
}

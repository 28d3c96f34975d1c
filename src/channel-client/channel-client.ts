import { createWebSocketStream } from 'ws'
import type { Duplex } from 'node:stream'
import type { Clock } from '../lib/clock.ts'
import type { PiecePacer } from '../lib/turns/piece-pacer.ts'
import { type ChannelEnd, channelEndOfWorkerCode } from '../contract/sandboxes/channel-ends.ts'
import { openChannel } from '../control/streams/open-channel.ts'
import { CallerEnded } from '../control/streams/watch-caller.ts'
import { RunEnded } from '../control/streams/watch-run.ts'
import type { SandboxId } from '../domain/ids.ts'
import type { Caller } from '../domain/orgs/caller.ts'
import { Problem } from '../domain/problem.ts'
import { type AgentOptions, ChannelLost, connectAgent } from './connection.ts'
import { type ExecRequest, type ExecSession, startExec } from './exec.ts'
import { type Files, makeFiles } from './files.ts'
import { connectTcp } from './tcp.ts'

/**
 * The client's side of a sandbox's command channel, within this process: commands, files and connections of the
 * sandbox. Call `close` when you are done. Many sessions share one channel, and one that isn't read delays the others.
 */
export type ChannelClient = {
  /**
   * Opens a TCP connection inside the sandbox. Without a host, it leads to the sandbox itself. The stream half-closes and
   * follows the pace of both sides. Rejects with `ConnectFailure`, whose `kind` is `refused` if nothing listens there, and
   * with `ChannelLost`.
   */
  connect(port: number, host?: string, signal?: AbortSignal): Promise<Duplex>
  /** Starts a process, which ends with the channel at the latest. */
  exec(request: ExecRequest): ExecSession
  readonly files: Files
  /** Ends the channel and everything on it. May be repeated. */
  close(): void
  /** Resolves with the reason when the channel has ended. */
  readonly closed: Promise<ChannelEnd>
}

/** The time limit for the agent's first message. Public clients have the same limit. */
const READY_LIMIT_MS = 10_000
/** The buffer of the WebSocket in each direction. */
const BUFFER_BYTES = 256 * 1024

/**
 * Opens the command channel of a running sandbox as a caller: the channel is counted, watched and recorded as any
 * client's. Throws as `openChannel` does, and `unavailable` when the agent doesn't answer. `signal` aborts the opening
 * only.
 */
export async function openChannelClient(
  deps: Parameters<typeof openChannel>[0] & { readonly pacer: PiecePacer },
  caller: Caller,
  id: SandboxId,
  signal: AbortSignal,
): Promise<ChannelClient> {
  const channel = await openChannel(deps, caller, id, signal)
  let code = 0
  channel.socket.once('close', (given) => {
    code = given
  })
  const stream = createWebSocketStream(channel.socket, {
    readableHighWaterMark: BUFFER_BYTES,
    writableHighWaterMark: BUFFER_BYTES,
  })
  const client = startChannelClient(stream, {
    whyClosed: () => channelEndOfWorkerCode(code),
    pace: deps.pacer.paceOf(caller.org_id),
  })
  const onAbort = (): void => {
    client.end(endOf(channel.signal.reason))
  }
  channel.signal.addEventListener('abort', onAbort, { once: true })
  if (channel.signal.aborted) onAbort()
  void client.closed.then(() => {
    channel.signal.removeEventListener('abort', onAbort)
    channel.close()
  })
  await waitUntilReady(client, deps.clock, signal)
  return client
}

/** A `ChannelClient` over any byte stream. */
type StartedClient = ChannelClient & {
  /** Resolves when the agent is ready. Rejects with `ChannelLost`. */
  readonly ready: Promise<void>
  end(why: ChannelEnd): void
}

/** Speaks the agent protocol over a byte stream. */
export function startChannelClient(stream: Duplex, options: AgentOptions): StartedClient {
  const connection = connectAgent(stream, options)
  return {
    connect: (port, host, signal) => connectTcp(connection, { port, host: host ?? null }, signal),
    exec: (request) => startExec(connection, request),
    files: makeFiles(connection),
    ready: connection.ready,
    closed: connection.closed,
    end(why) {
      connection.end(why)
    },
    close() {
      connection.end('client_done')
    },
  }
}

async function waitUntilReady(client: StartedClient, clock: Clock, signal: AbortSignal): Promise<void> {
  const settled = new AbortController()
  const late = clock.sleep(READY_LIMIT_MS, AbortSignal.any([signal, settled.signal])).then(
    () => 'late' as const,
    () => 'aborted' as const,
  )
  try {
    const first = await Promise.race([client.ready.then(() => 'ready' as const), late])
    if (first === 'ready') return
    signal.throwIfAborted()
    throw new Problem('unavailable', { message: 'unavailable: the agent of this sandbox did not answer' })
  } catch (error) {
    client.close()
    if (!(error instanceof ChannelLost)) throw error
    throw new Problem('unavailable', { message: `unavailable: ${error.message}`, cause: error })
  } finally {
    settled.abort()
  }
}

function endOf(reason: unknown): ChannelEnd {
  return reason instanceof CallerEnded || reason instanceof RunEnded ? reason.why : 'server_closing'
}

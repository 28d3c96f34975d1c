import type { WebSocket } from 'ws'
import type { Caller } from '../../domain/orgs/caller.ts'
import type { SandboxId } from '../../domain/ids.ts'
import type { SandboxSummary } from '../../domain/sandboxes/sandbox.ts'
import * as runs from '../../store/sandboxes/runs.ts'
import type { SandboxKey } from '../../domain/sandboxes/sandbox.ts'
import type { BaseDeps } from '../deps.ts'
import type { ConcurrencyLimit } from '../requests/concurrency-limit.ts'
import { openWorkerStream, type StreamTarget } from './open-worker-stream.ts'
import { getSummary, type SandboxReader } from '../sandboxes/read-sandboxes.ts'
import { invalidStateTransition } from '../sandboxes/start-sandbox.ts'
import { recordEvent } from '../events/record-event.ts'
import { problemOfCallerEnd, type CallerWatchDeps } from './watch-caller.ts'
import { watchRun } from './watch-run.ts'

/** The command channel of a running sandbox, from its worker. Call `close` when you are done. */
export type OpenChannel = {
  /** Carries the raw bytes of the agent protocol in binary messages. It is paused until you resume it. */
  readonly socket: WebSocket
  /** Aborted when the channel must end, with a `CallerEnded` or a `RunEnded` as the reason. */
  readonly signal: AbortSignal
  /** Releases the resources of the channel and closes the socket. May be repeated. */
  readonly close: () => void
}

type OpenDeps = Pick<BaseDeps, 'db' | 'clock' | 'uuids' | 'log' | 'notifications'> &
  SandboxReader &
  CallerWatchDeps & {
    /**
     * Asks a worker for a channel. Resolves with the WebSocket to the worker, which is paused so that no message is
     * lost. Resolves with null when too many streams are being opened.
     */
    readonly dialChannel: (target: StreamTarget, signal: AbortSignal) => Promise<WebSocket | null>
    readonly channelLimit: ConcurrencyLimit<SandboxKey>
  }

/**
 * Opens the command channel of a running sandbox. Throws `sandbox_not_found`, `invalid_state_transition`, and
 * `rate_limited` at a limit on channels. Throws `unavailable` when the worker does not answer or too many channels are
 * being opened. When the caller loses its rights meanwhile, throws the problem that `problemOfCallerEnd` returns.
 */
export async function openChannel(
  deps: OpenDeps,
  caller: Caller,
  id: SandboxId,
  signal: AbortSignal,
): Promise<OpenChannel> {
  const [sandbox, run] = await Promise.all([
    getSummary(deps, caller, { id }),
    deps.db.asOrg(caller.org_id, (q) => runs.placedRunOf(q, id)),
  ])
  if (sandbox.status !== 'running' || run === null) throw invalidStateTransition(sandbox.status, ['running'])
  const releasePermit = deps.channelLimit.acquire(sandbox)
  const watch = deps.callerWatcher.watch(caller)
  const release = (): void => {
    releasePermit()
    watch.stop()
  }
  try {
    const socket = await dialWorker(deps, caller, { sandbox, run, signal: AbortSignal.any([signal, watch.signal]) })
    const runWatch = watchRun(deps, sandbox)
    return {
      socket,
      signal: AbortSignal.any([watch.signal, runWatch.signal]),
      close() {
        release()
        runWatch.stop()
        socket.terminate()
      },
    }
  } catch (error) {
    release()
    throw watch.signal.aborted ? problemOfCallerEnd(watch.signal.reason) : error
  }
}

/** Asks the worker to dial in and records the audit event. No client gets a channel without an event. */
async function dialWorker(
  deps: OpenDeps,
  { org_id, actor }: Caller,
  {
    sandbox,
    run,
    signal,
  }: { readonly sandbox: SandboxSummary; readonly run: runs.PlacedRun; readonly signal: AbortSignal },
): Promise<WebSocket> {
  const { worker_id, run_id } = run
  const target = { worker_id, purpose: { kind: 'agent', run_id } } as const
  const socket = await openWorkerStream({ openStream: deps.dialChannel }, target, { signal, messages: MESSAGES })
  const payload = { sandbox_id: sandbox.id, name: sandbox.name, run_id }
  try {
    await deps.db.asOrg(org_id, (q) =>
      recordEvent(deps, q, { org_id, actor, event_type: 'sandbox_channel_opened', payload }),
    )
    signal.throwIfAborted()
    return socket
  } catch (error) {
    socket.terminate()
    throw error
  }
}

const MESSAGES = {
  late: 'the worker of this sandbox did not answer',
  full: 'too many channels are being opened',
} as const

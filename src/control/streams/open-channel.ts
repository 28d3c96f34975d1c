import type { WebSocket } from 'ws'
import type { Caller } from '../../domain/orgs/caller.ts'
import type { SandboxId } from '../../domain/ids.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import * as runs from '../../store/sandboxes/runs.ts'
import type { ControlDeps } from '../deps.ts'
import { openWorkerStream } from './open-worker-stream.ts'
import { getSandbox } from '../sandboxes/read-sandboxes.ts'
import { invalidStateTransition } from '../sandboxes/start-sandbox.ts'
import { recordEvent } from '../events/record-event.ts'
import { problemOfCallerEnd, watchCaller } from './watch-caller.ts'
import { watchRun } from './watch-run.ts'

/** The command channel of a running sandbox, as it comes from its worker. Whoever opened it calls `close`, once. */
export type OpenChannel = {
  /** Carries the raw bytes of the agent protocol in binary messages. Paused: nothing is received before it is resumed. */
  readonly socket: WebSocket
  /** Aborted when the channel may not go on: with a `CallerEnded` or a `RunEnded`. */
  readonly signal: AbortSignal
  /** Gives back what the channel holds and cuts the socket, if it is still open. May be repeated. */
  readonly close: () => void
}

type OpenDeps = Pick<
  ControlDeps,
  'db' | 'clock' | 'uuids' | 'log' | 'notifications' | 'readSandbox' | 'dialChannel' | 'channelPlaces' | 'callerWatches'
>

/**
 * Opens the command channel of a running sandbox. Throws `sandbox_not_found`, `invalid_state_transition`, `rate_limited`
 * at a limit of channels, `unavailable` when the worker does not answer or too many wait, and what a caller meets whose
 * key ends meanwhile.
 */
export async function openChannel(
  deps: OpenDeps,
  caller: Caller,
  id: SandboxId,
  signal: AbortSignal,
): Promise<OpenChannel> {
  const sandbox = await getSandbox(deps, caller, { id })
  const run = await deps.db.asOrg(caller.org_id, (q) => runs.placedRunOf(q, id))
  if (sandbox.status !== 'running' || run === null) throw invalidStateTransition(sandbox.status, ['running'])
  const giveBack = deps.channelPlaces.acquire(sandbox)
  const watch = watchCaller(deps, caller)
  const release = (): void => {
    giveBack()
    watch.stop()
  }
  try {
    const socket = await join(deps, caller, { sandbox, run, signal: AbortSignal.any([signal, watch.signal]) })
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

/** Has the worker dial in, and tells of it: nobody gets a channel of which no audit event tells. */
async function join(
  deps: OpenDeps,
  { org_id, actor }: Caller,
  { sandbox, run, signal }: { readonly sandbox: Sandbox; readonly run: runs.PlacedRun; readonly signal: AbortSignal },
): Promise<WebSocket> {
  const { worker_id, run_id } = run
  const target = { worker_id, asked: { kind: 'agent', run_id } } as const
  const socket = await openWorkerStream({ openStream: deps.dialChannel }, target, { signal, words: WORDS })
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

const WORDS = { late: 'the worker of this sandbox did not answer', full: 'too many channels are being opened' } as const

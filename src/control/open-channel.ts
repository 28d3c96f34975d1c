import type { Duplex } from 'node:stream'
import type { Caller } from '../domain/caller.ts'
import type { RunId, SandboxId } from '../domain/ids.ts'
import { Problem } from '../domain/problem.ts'
import * as events from '../store/events.ts'
import * as runs from '../store/runs.ts'
import type { ControlDeps } from './deps.ts'
import { getSandbox } from './read-sandboxes.ts'
import { wrongState } from './start-sandbox.ts'

/** How long a worker has to dial in for a stream: the client gives up after 10 s (agent protocol, section 1). */
const DIAL_IN_MS = 8_000

/**
 * Opens the command channel of a running sandbox: the raw bytes of the agent protocol, relayed from its worker. Throws
 * `sandbox_not_found`, `invalid_state_transition`, and `unavailable` when the worker does not answer or too many wait.
 */
export async function openChannel(
  deps: Pick<ControlDeps, 'db' | 'clock' | 'uuids' | 'readSandbox' | 'openStream'>,
  caller: Caller,
  id: SandboxId,
  signal: AbortSignal,
): Promise<Duplex> {
  const sandbox = await getSandbox(deps, caller, { id })
  const run = await deps.db.asOrg(caller.org_id, (q) => runs.placedRunOf(q, id))
  if (sandbox.status !== 'running' || run === null) throw wrongState(sandbox.status, ['running'])
  const limit = AbortSignal.any([signal, AbortSignal.timeout(DIAL_IN_MS)])
  try {
    const { worker_id, run_id } = run
    const stream = await deps.openStream({ worker_id, asked: { kind: 'agent', run_id } }, limit)
    if (stream !== null)
      return await told(deps, caller, { stream, name: sandbox.name, sandbox_id: id, run_id: run.run_id })
  } catch (error) {
    if (!limit.aborted) throw error
    throw new Problem('unavailable', {
      message: 'the worker of this sandbox did not answer',
      retryAfterSeconds: 1,
      cause: error,
    })
  }
  throw new Problem('unavailable', { message: 'too many channels are being opened', retryAfterSeconds: 1 })
}

type Opened = {
  readonly stream: Duplex
  readonly sandbox_id: SandboxId
  readonly name: string
  readonly run_id: RunId
}

/** Nobody gets a channel of which no audit event tells. */
async function told(
  deps: Pick<ControlDeps, 'db' | 'clock' | 'uuids'>,
  caller: Caller,
  { stream, sandbox_id, name, run_id }: Opened,
): Promise<Duplex> {
  try {
    const event: events.NewEvent = {
      id: deps.uuids.next(),
      org_id: caller.org_id,
      timestamp: deps.clock.now(),
      event_type: 'sandbox_channel_opened',
      sandbox_id,
      actor: caller.actor,
      payload: { sandbox_id, name, run_id },
    }
    await deps.db.asOrg(caller.org_id, (q) => events.insertMany(q, [event]))
    return stream
  } catch (error) {
    stream.destroy()
    throw error
  }
}

import type { Duplex } from 'node:stream'
import type { Caller } from '../domain/caller.ts'
import type { SandboxId } from '../domain/ids.ts'
import * as runs from '../store/runs.ts'
import type { ControlDeps } from './deps.ts'
import { dialIn } from './dial-in.ts'
import { getSandbox } from './read-sandboxes.ts'
import { wrongState } from './start-sandbox.ts'
import { tell } from './tell.ts'

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
  const { worker_id, run_id } = run
  const stream = await dialIn(deps, { worker_id, asked: { kind: 'agent', run_id } }, { signal, words: WORDS })
  const payload = { sandbox_id: id, name: sandbox.name, run_id }
  try {
    const { org_id, actor } = caller
    await deps.db.asOrg(org_id, (q) => tell(deps, q, { org_id, actor, event_type: 'sandbox_channel_opened', payload }))
    return stream
  } catch (error) {
    stream.destroy() // nobody gets a channel of which no audit event tells
    throw error
  }
}

const WORDS = { late: 'the worker of this sandbox did not answer', full: 'too many channels are being opened' } as const

import { openChannelClient, type ChannelClient } from '../channel-client/channel-client.ts'
import type { ControlDeps } from '../control/make-deps.ts'
import type { SshEntry } from '../control/orgs/ssh-entries.ts'
import { getSandbox } from '../control/sandboxes/read-sandboxes.ts'
import { startSandbox } from '../control/sandboxes/start-sandbox.ts'
import { Problem } from '../domain/problem.ts'
import type { PiecePacer } from '../lib/turns/piece-pacer.ts'
import { allowsSsh, SSH_LABELS } from '../domain/sandboxes/ssh-labels.ts'

/** The pacer counts the frames of the agents of sandboxes. */
export type SshDeps = ControlDeps & { readonly pacer: PiecePacer }

/** A reason why a session can't begin, for the person at the SSH client. */
export class SshRefusal extends Error {}

/** The channel of a connection to its sandbox, and whether the sandbox takes the agent of the client. */
export type Entered = { readonly client: ChannelClient; readonly allowsAgent: boolean }

/** How long a connection waits for its sandbox to start. */
const START_LIMIT_MS = 60_000

/**
 * Opens the channel of a sandbox for an SSH connection. A sandbox that doesn't run is started if its label
 * `sandyard.ssh-start` is `true`. Rejects with `SshRefusal`.
 */
export async function enterSandbox(
  deps: SshDeps,
  { caller, sandbox_id: id }: SshEntry,
  signal: AbortSignal,
): Promise<Entered> {
  try {
    const { status, name, spec_json } = await getSandbox(deps, caller, { id })
    if (status !== 'running') {
      if (status !== 'starting' && !allowsSsh('start', spec_json))
        throw new SshRefusal(
          `the sandbox ${name} is ${status}; start it, or set its label ${SSH_LABELS.start} to true so that connecting starts it`,
        )
      const started = await startSandbox(deps, caller, { id }, { waitMs: START_LIMIT_MS, signal })
      if (started.status !== 'running') throw new SshRefusal(`the sandbox ${name} is ${started.status}`)
    }
    return { client: await openChannelClient(deps, caller, id, signal), allowsAgent: allowsSsh('agent', spec_json) }
  } catch (error) {
    if (error instanceof Problem) throw new SshRefusal(error.message, { cause: error })
    throw error
  }
}

import { toolCommand } from '../../../contract/workers/guest-tools.ts'
import type { RunId } from '../../../domain/ids.ts'
import type { ApiClient } from '../../kubernetes/api-client.ts'
import { execInPod } from '../../kubernetes/exec-stream.ts'
import { openAgentLink, type AgentLink } from './agent-link.ts'
import { podNameOf, SANDBOX_CONTAINER } from './pod.ts'

/** A run, and the namespace of its Pod. */
type LinkedRun = { readonly run_id: RunId; readonly namespace: string }

/** The connections to the agents in Pods: at most one for each run, made at the first use and after a loss. */
export type AgentLinks = {
  of(run: LinkedRun, signal: AbortSignal): Promise<AgentLink>
  /** Closes the connection of a run, which ends all commands in its sandbox. */
  drop(run: RunId): void
  close(): void
}

/** Creates an empty set of connections. */
export function makeAgentLinks(client: Pick<ApiClient, 'openSocket'>): AgentLinks {
  const links = new Map<RunId, Promise<AgentLink>>()
  const open = async ({ run_id, namespace }: LinkedRun, signal: AbortSignal): Promise<AgentLink> => {
    const target = { namespace, pod: podNameOf(run_id), container: SANDBOX_CONTAINER }
    const command = toolCommand('agent.pl', [process.arch])
    const { stream, ended } = await execInPod(client, { ...target, command }, signal)
    try {
      return await openAgentLink(stream)
    } catch (error) {
      stream.destroy()
      const status = await ended
      const why = status.kind === 'failed' ? status.message : `the helper process ended with ${String(status.code)}`
      throw new Error(why, { cause: error })
    }
  }
  return {
    async of(run, signal) {
      const { run_id } = run
      const known = links.get(run_id)
      if (known !== undefined) {
        const link = await known.catch(() => null)
        if (link?.isClosed === false) return link
        if (links.get(run_id) !== known) return await this.of(run, signal) // somebody else has made a new one meanwhile
      }
      const opening = open(run, signal)
      links.set(run_id, opening)
      return await opening
    },
    drop(run) {
      const link = links.get(run)
      links.delete(run)
      link?.then(closeLink, () => undefined)
    },
    close() {
      for (const link of links.values()) link.then(closeLink, () => undefined)
      links.clear()
    },
  }
}

function closeLink(link: AgentLink): void {
  link.close()
}

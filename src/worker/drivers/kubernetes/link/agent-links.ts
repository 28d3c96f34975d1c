import { toolCommand } from '../../../../contract/workers/guest-tools.ts'
import type { PiecePacer } from '../../../../lib/turns/piece-pacer.ts'
import type { ApiClient } from '../../../kubernetes/api-client.ts'
import { execInPod } from '../../../kubernetes/exec-stream.ts'
import { AgentRefusal, openAgentLink, type AgentLink } from './agent-link.ts'
import { SANDBOX_CONTAINER, type OrgPod } from '../pod.ts'

/** The connections to the agents in Pods: at most one for each Pod, made at the first use and after a loss. */
export type AgentLinks = {
  of(pod: OrgPod, signal: AbortSignal): Promise<AgentLink>
  /** Closes the connection of a Pod, which ends all commands in its sandbox. */
  drop(name: string): void
  close(): void
}

type AgentLinksDeps = {
  readonly client: Pick<ApiClient, 'openSocket'>
  /** The messages of an organization's agents share their turns. */
  readonly pacer: PiecePacer
}

/** Creates an empty set of connections. `container` is the one with the agent, and `tools` the folder of the toolbox in it. */
export function makeAgentLinks(
  { client, pacer }: AgentLinksDeps,
  { container = SANDBOX_CONTAINER, tools }: { readonly container?: string; readonly tools?: string } = {},
): AgentLinks {
  const links = new Map<string, Promise<AgentLink>>()
  const open = async ({ namespace, name, org_id }: OrgPod, signal: AbortSignal): Promise<AgentLink> => {
    const target = { namespace, pod: name, container, pace: pacer.paceOf(org_id) }
    const command = toolCommand('agent.pl', [process.arch], tools)
    const { stream, ended } = await execInPod(client, { ...target, command }, signal)
    try {
      return await openAgentLink(stream, target.pace)
    } catch (error) {
      stream.destroy()
      if (error instanceof AgentRefusal) throw error
      const status = await ended
      const why = status.kind === 'failed' ? status.message : `the helper process ended with ${String(status.code)}`
      throw new Error(why, { cause: error })
    }
  }
  return {
    async of(pod, signal) {
      const { name } = pod
      const known = links.get(name)
      if (known !== undefined) {
        const link = await known.catch(() => null)
        if (link?.isClosed === false) return link
        if (links.get(name) !== known) return await this.of(pod, signal) // somebody else has made a new one meanwhile
      }
      const opening = open(pod, signal)
      links.set(name, opening)
      return await opening
    },
    drop(name) {
      const link = links.get(name)
      links.delete(name)
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

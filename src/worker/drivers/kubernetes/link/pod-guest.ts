import { constants } from 'node:os'
import { TOOLS_FOLDER, toolCommand } from '../../../../contract/workers/guest-tools.ts'
import type { OrgId, SandboxId } from '../../../../domain/ids.ts'
import { ExecFailure, type Guest, type GuestProcess } from '../../../channel/guest.ts'
import { makeFilesClient } from '../../../channel/files-client.ts'
import { FileFailure } from '../../../channel/guest-files.ts'
import { SessionLimitReached, type SessionPermits } from '../../../channel/session-permits.ts'
import { connectByProcess } from '../../shared/tcp-stream.ts'
import type { AgentLink, AgentStart } from './agent-link.ts'

type PodGuestInput = {
  readonly sandbox: SandboxId
  readonly org: OrgId
  readonly sessions: SessionPermits
  /** The connection to the agent, made again if it was lost. Rejects when the Pod can't be reached. */
  readonly link: () => Promise<AgentLink>
  /** The folder of the toolbox in the sandbox. */
  readonly tools?: string
}

/** Makes the guest of a Pod: everything that its channels start goes over one connection to the agent in it. */
export function makePodGuest({ sandbox, org, sessions, link, tools = TOOLS_FOLDER }: PodGuestInput): Guest {
  const start = async (request: AgentStart): Promise<GuestProcess> => {
    const release = acquire(sessions, { sandbox, org })
    try {
      const process = await (await reach(link)).start(request)
      void process.exited.then(release)
      return process
    } catch (error) {
      release()
      throw error
    }
  }
  const startTool = (command: readonly string[]): Promise<GuestProcess> =>
    start({ command, env: ['LC_ALL=C'], hasOwnEnv: true, cwd: '/', user: null, tty: null, rlimits: [] })

  return {
    async exec({ cmd, args, env, cwd, user, tty, rlimits }) {
      return await start({ command: [cmd, ...args], env, hasOwnEnv: false, cwd, user, tty, rlimits })
    },
    async connect(target, signal) {
      return await connectByProcess((args) => startTool(toolCommand('tcp.pl', args, tools)), target, signal)
    },
    async openFiles() {
      try {
        return makeFilesClient(await startTool(toolCommand('files.pl', [process.arch], tools)))
      } catch (error) {
        if (!(error instanceof ExecFailure)) throw error
        throw new FileFailure(`files: ${error.message}`, { cause: error })
      }
    },
  }
}

async function reach(link: PodGuestInput['link']): Promise<AgentLink> {
  try {
    return await link()
  } catch (error) {
    const why = error instanceof Error ? error.message : 'unknown'
    throw new ExecFailure('other', `the sandbox can't be reached: ${why}`)
  }
}

function acquire(sessions: SessionPermits, { sandbox, org }: { sandbox: string; org: string }): () => void {
  try {
    return sessions.acquire({ sandbox, org })
  } catch (error) {
    if (!(error instanceof SessionLimitReached)) throw error
    throw new ExecFailure('resource_limit', error.message, { errno: constants.errno.EAGAIN, errnoName: 'EAGAIN' })
  }
}

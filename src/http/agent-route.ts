import { OPERATIONS } from '../contract/operations.ts'
import { asId, type SandboxId } from '../domain/ids.ts'
import type { Log } from '../lib/log.ts'
import { authenticateRequest, requireScope } from './authenticate-request.ts'
import { pipeWebSocket } from './pipe-web-socket.ts'
import { parseQuery } from './query.ts'
import type { UpgradeRoute } from './upgrades.ts'
import type { UseCases } from './use-cases.ts'
import type { ParserMaker } from './validate.ts'

/**
 * The command channel of a sandbox. Everything that can be refused is refused before the upgrade: the public client
 * shows the HTTP status of a refusal and nothing of a WebSocket that opens and closes.
 */
export function agentRoute(deps: {
  readonly useCases: UseCases
  readonly log: Log
  readonly makeParser: ParserMaker
  readonly settings: { readonly pingMs: number }
}): UpgradeRoute {
  const { useCases, log, makeParser, settings } = deps
  const { path, params, query, access } = OPERATIONS.open_agent
  const parseParams = makeParser(params, 'path')
  const parseOfQuery = makeParser(query, 'query')
  return {
    path,
    handle: async (upgrade) => {
      const caller = await authenticateRequest(useCases, upgrade.headers.authorization)
      requireScope(caller, access)
      const { sandbox_id } = parseParams(upgrade.params)
      parseQuery(upgrade.url, query, parseOfQuery)
      const channel = await useCases.openChannel(caller, asId<SandboxId>(sandbox_id.toLowerCase()), upgrade.signal)
      channel.on('error', (error) => {
        log.debug({ request_id: upgrade.requestId, err: error }, 'a command channel broke')
      })
      try {
        await pipeWebSocket(await upgrade.accept(), channel, settings)
      } finally {
        channel.destroy()
      }
    },
  }
}

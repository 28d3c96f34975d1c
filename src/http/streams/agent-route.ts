import type { CallUseCase } from '../handlers/handler.ts'
import { Counter, type Registry } from 'prom-client'
import { OPERATIONS } from '../../contract/operations.ts'
import type { ChannelEnd } from '../../contract/sandboxes/channel-ends.ts'
import { CallerEnded } from '../../control/streams/watch-caller.ts'
import { RunEnded } from '../../control/streams/watch-run.ts'
import { openChannel } from '../../control/streams/open-channel.ts'
import { asId, type SandboxId } from '../../domain/ids.ts'
import type { Log } from '../../lib/log.ts'
import { authenticateRequest, requireScope } from '../handlers/authenticate-request.ts'
import { bridgeChannel } from './bridge-channel.ts'
import { parseQuery } from '../requests/parse-query.ts'
import { rateHeaders, type RequestLimits } from '../requests/request-limits.ts'
import type { UpgradeRoute } from './upgrades.ts'
import type { SchemaCompiler } from '../requests/schema-compiler.ts'

/**
 * The command channel of a sandbox. Everything that can be refused is refused before the upgrade: the public client
 * shows the HTTP status of a refusal and nothing of a WebSocket that opens and closes.
 */
export function agentRoute(deps: {
  readonly call: CallUseCase
  readonly log: Log
  readonly metrics: Registry
  readonly makeParser: SchemaCompiler
  readonly settings: { readonly pingMs: number }
  readonly limits?: RequestLimits
}): UpgradeRoute {
  const { call, log, makeParser, settings } = deps
  const { path, params, query, access } = OPERATIONS.open_agent
  const parseParams = makeParser(params, 'path')
  const parseOfQuery = makeParser(query, 'query')
  const ends = new Counter({
    name: 'sandyard_channel_ends_total',
    help: 'Command channels that ended, by why.',
    labelNames: ['why'],
    registers: [deps.metrics],
  })
  return {
    path,
    handle: async (upgrade) => {
      const { address, headers } = upgrade
      const caller = await authenticateRequest(deps, { address, authorization: headers.authorization })
      const counted = deps.limits?.rates.count(caller, 1)
      if (counted?.refusal) throw counted.refusal
      requireScope(caller, access)
      const { sandbox_id } = parseParams(upgrade.params)
      parseQuery(upgrade.url, query, parseOfQuery)
      const channel = await call(openChannel, caller, asId<SandboxId>(sandbox_id.toLowerCase()), upgrade.signal)
      try {
        const signal = AbortSignal.any([channel.signal, upgrade.closing])
        const why = await bridgeChannel(
          await upgrade.accept(counted?.status ? rateHeaders(counted.status) : {}),
          channel.socket,
          { ...settings, signal, endOf },
        )
        ends.inc({ why })
        log.debug({ request_id: upgrade.requestId, sandbox_id, why }, 'a command channel ended')
      } finally {
        channel.close()
      }
    },
  }
}

function endOf(reason: unknown): ChannelEnd {
  return reason instanceof CallerEnded || reason instanceof RunEnded ? reason.why : 'server_closing'
}

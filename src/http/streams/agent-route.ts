import { Counter, type Registry } from 'prom-client'
import { OPERATIONS } from '../../contract/operations.ts'
import { CHANNEL_ENDS, channelEndOfWorkerCode, type ChannelEnd } from '../../contract/sandboxes/channel-ends.ts'
import { CallerEnded } from '../../control/streams/watch-caller.ts'
import { RunEnded } from '../../control/streams/watch-run.ts'
import { openChannel } from '../../control/streams/open-channel.ts'
import { asId, type SandboxId } from '../../domain/ids.ts'
import { errorCodeOf } from '../../lib/error-code.ts'
import { joinSignals } from '../../lib/join-signals.ts'
import type { Log } from '../../lib/log.ts'
import { authenticateRequest, requireScope } from '../requests/authenticate-request.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'
import { parseQuery } from '../requests/parse-query.ts'
import { rateHeaders, type RequestLimits } from '../requests/request-limits.ts'
import type { UpgradeRoute } from './upgrades.ts'
import type { SchemaCompiler } from '../requests/schemas/schema-compiler.ts'
import type { WebSocket } from 'ws'
import { closeWebSocket, forwardMessages, pingEvery } from '../../lib/streams/web-socket-flow.ts'

/**
 * The route of a sandbox's command channel. All checks run before the upgrade: the public client shows the HTTP status
 * of a refusal, but shows nothing when a WebSocket opens and then closes.
 */
export function agentRoute(deps: {
  readonly call: CallUseCase
  readonly log: Log
  readonly metrics: Registry
  readonly compileSchema: SchemaCompiler
  readonly settings: { readonly pingMs: number }
  readonly limits?: RequestLimits
  readonly acceptsSessions?: boolean
}): UpgradeRoute {
  const { call, log, compileSchema, settings } = deps
  const { path, params, query, access } = OPERATIONS.open_agent
  const parseParams = compileSchema(params, 'path')
  const parseOfQuery = compileSchema(query, 'query')
  const ends = new Counter({
    name: 'sandyard_channel_ends_total',
    help: 'Command channels of the API that ended, by reason.',
    labelNames: ['why'],
    registers: [deps.metrics],
  })
  return {
    path,
    handle: async (upgrade) => {
      const { address, headers, isSecure } = upgrade
      const caller = await authenticateRequest(deps, { address, headers, isSecure, proof: 'origin' })
      const counted = deps.limits?.rates.count(caller, 1)
      if (counted?.refusal) throw counted.refusal
      requireScope(caller, access)
      const { sandbox_id } = parseParams(upgrade.params)
      parseQuery(upgrade.url, query, parseOfQuery)
      const channel = await call(openChannel, caller, asId<SandboxId>(sandbox_id.toLowerCase()), upgrade.signal)
      try {
        using either = joinSignals(channel.signal, upgrade.closing)
        const client = await upgrade.accept(counted?.status ? rateHeaders(counted.status) : {}, caller.org_id)
        const why = await bridgeChannel(client, channel.socket, { ...settings, signal: either.signal, endOf })
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

export type BridgeOptions = {
  /** The interval at which the client is pinged, in milliseconds. */
  readonly pingMs: number
  /** Ends the channel when it is aborted. `endOf` converts the abort reason to the end of the channel. */
  readonly signal: AbortSignal
  readonly endOf: (reason: unknown) => ChannelEnd
}

/**
 * Forwards messages between a client and a worker until either closes or the signal is aborted. Then it closes both
 * WebSockets with the same reason. Resolves with that reason once both are closed. Messages are forwarded without being
 * decoded.
 */
export async function bridgeChannel(client: WebSocket, worker: WebSocket, options: BridgeOptions): Promise<ChannelEnd> {
  const decided = Promise.withResolvers<ChannelEnd>()
  const end = decided.resolve
  const onAbort = (): void => {
    end(options.endOf(options.signal.reason))
  }
  const closed = Promise.all([whenClosed(client), whenClosed(worker)])
  client.on('error', (error) => {
    end(channelEndOfError(error))
  })
  client.once('close', () => {
    end('client_done')
  })
  worker.once('close', (code) => {
    end(channelEndOfWorkerCode(code))
  })
  options.signal.addEventListener('abort', onAbort, { once: true })
  if (options.signal.aborted) onAbort()
  if (worker.readyState !== worker.OPEN) end('worker_lost')
  if (client.readyState !== client.OPEN) end('client_done')
  forwardMessages(worker, client)
  forwardMessages(client, worker, (isBinary) => {
    if (!isBinary) end('not_binary')
    return isBinary
  })
  pingEvery(client, options.pingMs, () => {
    end('client_silent')
  })
  client.resume()
  worker.resume()
  const why = await decided.promise
  options.signal.removeEventListener('abort', onAbort)
  closeWebSocket(client, CHANNEL_ENDS[why])
  closeWebSocket(worker, CHANNEL_ENDS.client_done)
  await closed
  return why
}

/** The channel end for an error of the client's WebSocket. The `ws` library has already sent the close code. */
function channelEndOfError(error: Error): ChannelEnd {
  const code = errorCodeOf(error) ?? ''
  if (code === 'WS_ERR_UNSUPPORTED_MESSAGE_LENGTH') return 'message_too_large'
  return code.startsWith('WS_ERR_') ? 'client_broke_websocket' : 'client_done'
}

function whenClosed(socket: WebSocket): Promise<void> {
  return new Promise((resolve) => {
    if (socket.readyState === socket.CLOSED) resolve()
    else
      socket.once('close', () => {
        resolve()
      })
  })
}

import type { WebSocket } from 'ws'
import { CHANNEL_ENDS, channelEndOfWorkerCode, type ChannelEnd } from '../../contract/sandboxes/channel-ends.ts'
import { closeWebSocket, forwardMessages, pingEvery } from '../../lib/web-socket-flow.ts'

export type BridgeOptions = {
  /** How often the client is asked whether it is still there, in milliseconds. */
  readonly pingMs: number
  /** What ends the channel from outside; `endOf` names the reason of its abortion. */
  readonly signal: AbortSignal
  readonly endOf: (reason: unknown) => ChannelEnd
}

/**
 * Carries messages between a client and a worker until either ends or the signal comes, and then tells both why; resolves
 * with that once both are closed. The pieces are passed on as they come: what they hold is between the client and the agent.
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

/** What the library refused of the client's bytes; it has sent its own code already (its error codes: ws, doc/ws.md). */
function channelEndOfError(error: Error): ChannelEnd {
  const code = 'code' in error && typeof error.code === 'string' ? error.code : ''
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

import { duplexPair, type Duplex, type DuplexOptions } from 'node:stream'
import type { ChannelDeps } from './channel.ts'
import type { Guest } from './guest.ts'
import { serveChannel } from './serve-channel.ts'

/** Opens a channel to a guest and returns the client's side. Destroying it ends everything of the client. */
export function openChannel(guest: Guest, deps: ChannelDeps, options: DuplexOptions = {}): Duplex {
  const [client, agent] = duplexPair(options)
  // While the input of a process is full, the agent's side is paused, and would not read the end.
  client.once('close', () => agent.destroy())
  serveChannel(agent, guest, deps).catch((error: unknown) => {
    deps.log.error({ error }, 'a command channel ended with an unexpected error')
  })
  return client
}

import type ssh2 from 'ssh2'
import { serveIncoming, type RemoteForwardDeps } from './remote-forward.ts'
import { listenInSandbox } from './sandbox-listener.ts'

/**
 * Opens a Unix socket in the sandbox that leads to the agent of the client (`ssh -A`), and resolves with its path. Only the
 * sandbox's user and its root can enter it. It ends with the connection. Rejects with `ListenFailure`.
 */
export async function openAgentSocket(deps: RemoteForwardDeps): Promise<string> {
  const client = await deps.shared.client()
  const { name } = await listenInSandbox({ client, random: deps.random }, { kind: 'agent' }, (incoming) => {
    void serveIncoming(deps, incoming, () => openAgentChannel(deps.shared.connection))
  })
  return name
}

const CHANNEL_TYPE = 'auth-agent@openssh.com'
const WINDOW_BYTES = 2 * 1024 * 1024
const PACKET_BYTES = 32 * 1024

/**
 * Opens a channel to the agent of the client. The library has the message, but no method of its connections sends it, so this
 * registers the channel as its methods for other types do.
 */
function openAgentChannel(connection: ssh2.Connection): Promise<ssh2.ServerChannel> {
  return new Promise((resolve, reject) => {
    const done = (error: Error | undefined, channel: ssh2.ServerChannel): void => {
      if (error === undefined) resolve(channel)
      else reject(error)
    }
    const channels: unknown = Reflect.get(connection, '_chanMgr')
    const protocol: unknown = Reflect.get(connection, '_protocol')
    const id: unknown = call(channels, 'add', [Object.assign(done, { type: CHANNEL_TYPE })])
    if (typeof id !== 'number' || id < 0) reject(new Error('the SSH library has no free channel'))
    else call(protocol, 'openssh_authAgent', [id, WINDOW_BYTES, PACKET_BYTES])
  })
}

function call(on: unknown, method: string, args: readonly unknown[]): unknown {
  if (typeof on !== 'object' || on === null) return undefined
  const found: unknown = Reflect.get(on, method)
  return typeof found === 'function' ? Reflect.apply(found, on, args) : undefined
}

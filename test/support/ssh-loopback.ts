import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import type { TestContext } from 'node:test'
import ssh2 from 'ssh2'
import type { ChannelClient } from '../../src/channel-client/channel-client.ts'
import { makeLog } from '../../src/lib/log.ts'
import { makeSemaphore } from '../../src/lib/turns/semaphore.ts'
import { makeHostKey } from '../../src/ssh/server.ts'
import { makeInputLimit } from '../../src/ssh/input-limits.ts'
import { keepKeysAsObjects } from '../../src/ssh/protocol-state.ts'
import { serveSession } from '../../src/ssh/session.ts'
import type { SshConnection } from '../../src/ssh/shared-connection.ts'

/** An SSH connection of anybody to a sandbox, over loopback. */
export type SshLoopback = {
  readonly connection: ssh2.Client
  /** The two ends of the TCP connection. */
  readonly client: Socket
  readonly server: Socket
}

/** Serves the sessions of one connection by `sandbox`, and connects to it. It ends with the test. */
export async function startSshLoopback(
  t: TestContext,
  sandbox: ChannelClient | Promise<ChannelClient>,
): Promise<SshLoopback> {
  const ssh = new ssh2.Server({ hostKeys: [makeHostKey().private] })
  let server = null as Socket | null // TypeScript doesn't see that the listener sets it
  ssh.on('connection', (serving, { header }) => {
    if (server === null) throw new Error('no socket came')
    const limits = { limitInput: makeInputLimit(server), sftpSessions: makeSemaphore(10) } // as `serveConnection` does
    serving.on('authentication', (context) => {
      context.accept()
    })
    serving.on('error', () => undefined)
    serving.on('handshake', () => keepKeysAsObjects(serving))
    serving.on('session', (accept) => {
      const shared = {
        connection: serving,
        socket: server,
        ...limits,
        ident: header.identRaw,
        permits: { pty: true, forwarding: true, agent: true },
        closed: new AbortController().signal,
        log: makeLog('silent'),
        client: () => Promise.resolve(sandbox),
        forwardsSettled: () => Promise.resolve(),
        agentSocket: () => Promise.resolve(null),
      } as unknown as SshConnection // the socket is set by then
      serveSession(shared, accept(), () => undefined)
    })
  })
  const listener = createServer((socket) => {
    server = socket
    ssh.injectSocket(socket)
  })
  listener.listen(0, '127.0.0.1')
  await once(listener, 'listening')
  const client = connect({ host: '127.0.0.1', port: (listener.address() as AddressInfo).port })
  t.after(() => {
    client.destroy()
    listener.close()
  })
  const connection = new ssh2.Client()
  connection.on('handshake', () => keepKeysAsObjects(connection)) // tests that send much are faster with them
  connection.connect({ sock: client, username: 'nobody', authHandler: ['none'] })
  await once(connection, 'ready')
  connection.on('error', () => undefined)
  if (server === null) throw new Error('no connection came')
  return { connection, client, server }
}

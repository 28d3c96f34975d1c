import type { Socket } from 'node:net'
import { TLSSocket, type SecureContext } from 'node:tls'
import { KEPT, keepUntilClosed, keepWhile } from '../connection-memory.ts'
import { peekBytes } from '../peek-bytes.ts'
import { watchPeer } from '../watch-peer.ts'
import { detectProtocol, PREFACE_BYTES } from './detect-protocol.ts'
import { judgeSecrets } from '../placeholders/host-secrets.ts'
import type { InterceptedConnection, RequestRules, ServedRequests } from './intercepted-connection.ts'
import { RequestRefused } from '../request-refused.ts'
import { serveConnect } from './serve-connect.ts'
import { serveHttp1 } from './serve-http1.ts'
import { serveHttp2 } from './serve-http2.ts'
import { firstOf } from './sockets.ts'

const HANDSHAKE_LIMIT_MS = 30_000

/** Serves an intercepted connection until its end. It never rejects: whatever fails ends the connection. */
export async function serveIntercepted(connection: InterceptedConnection): Promise<void> {
  const { client, destination, tls, tunnels, budget, memory, turn, onRefused } = connection
  const host = connection.sni ?? destination.address
  let guest: Socket = client
  client.on('error', () => client.destroy())
  try {
    if (tls !== null) {
      keepUntilClosed(memory, KEPT.tls, client)
      guest = await acceptTls(client, await tls.certificates.contextFor(host))
    }
    const protocol = await peekBytes(guest, { parse: detectProtocol, maxBytes: PREFACE_BYTES, limitMs: null })
    const served: ServedRequests = {
      guest,
      rules: rulesOf(connection, host),
      connectServer: (protocols) => keepWhile(memory, KEPT.readAhead, () => connectServer(connection, host, protocols)),
      memory,
      turn,
      onRefused,
    }
    if (protocol !== 'http2') watchPeer(guest)
    if (protocol === 'http2') await serveHttp2(served)
    else if (protocol === 'connect' && tunnels !== null)
      await serveConnect({ ...served, connection, tunnels, serveInner: serveIntercepted })
    else if (protocol !== null) await serveHttp1({ ...served, budget, isOpaque: protocol === 'opaque' })
  } catch (error) {
    // one side failed, and the connection ends
    if (error instanceof RequestRefused) onRefused(error)
  } finally {
    guest.destroy()
    client.destroy()
  }
}

function rulesOf({ allowsHost, secrets, tiedNames, tls }: InterceptedConnection, host: string): RequestRules {
  const isVerified = tls !== null && tls.upstream.verifies(host)
  const secretsFor = (name: string) => {
    if (!allowsHost(name)) throw new RequestRefused('a host that the policy denies', { isByPolicy: true })
    return judgeSecrets(secrets, { tiedNames, isVerified, host: name })
  }
  return { authority: tls === null ? null : host, secretsFor: rememberLast(secretsFor) }
}

/** The requests of a connection mostly name one host. */
function rememberLast<Result>(judge: (host: string) => Result): (host: string) => Result {
  let last: { readonly host: string; readonly result: Result } | null = null
  return (host) => {
    if (last?.host !== host) last = { host, result: judge(host) }
    return last.result
  }
}

async function acceptTls(client: Socket, secureContext: SecureContext): Promise<TLSSocket> {
  const guest = new TLSSocket(client, { isServer: true, secureContext })
  guest.on('error', () => guest.destroy())
  const timer = setTimeout(() => guest.destroy(), HANDSHAKE_LIMIT_MS)
  await firstOf(guest, ['secure', 'end', 'close'])
  // Only Node's own server resets it, and Node's HTTP/2 would wait for the handshake.
  Object.assign(guest, { secureConnecting: false })
  clearTimeout(timer)
  return guest
}

async function connectServer(
  { client, dial, tls }: InterceptedConnection,
  host: string,
  protocols: readonly string[],
): Promise<Socket> {
  const socket = await dial()
  socket.on('error', () => socket.destroy())
  client.on('close', () => socket.destroy())
  const server = tls === null ? socket : await tls.upstream.connect(socket, host, protocols)
  server.on('error', () => server.destroy())
  return server
}

import type { Socket } from 'node:net'
import { boundedPipe } from '../bounded-pipe.ts'
import { KEPT, keepWhile } from '../connection-memory.ts'
import { readFirstBytes } from '../read-first-bytes.ts'
import { relay } from '../relay.ts'
import { checkHead } from './check-head.ts'
import type { InterceptedConnection, ServedRequests, TunnelRules } from './intercepted-connection.ts'
import { readHead } from './read-head.ts'
import { parseConnect } from './request-head.ts'
import { renderDenial, RequestRefused, type RequestContext } from '../request-refused.ts'
import { firstOf, writeAll } from './sockets.ts'

/** How long a client in a tunnel may be silent. Servers that speak first wait for it. */
const SILENCE_LIMIT_MS = 1_000

type Options = ServedRequests & {
  readonly connection: InterceptedConnection
  readonly tunnels: TunnelRules
  readonly serveInner: (connection: InterceptedConnection) => Promise<void>
}

/**
 * Serves a connection to an HTTP proxy that begins with CONNECT. No value goes into that request. What the tunnel carries is
 * judged like a connection to the host that CONNECT names. The proxy resolves the name, so the server's certificate takes the
 * place of a tie by DNS.
 */
export async function serveConnect({
  guest,
  rules,
  connectServer,
  memory,
  turn,
  onRefused,
  ...rest
}: Options): Promise<void> {
  const { connection, tunnels, serveInner } = rest
  let context: RequestContext = { method: 'CONNECT', host: null, path: null }
  let server: Socket | null = null
  const bounds = { memory, readAheadBytes: KEPT.readAhead }
  const read = (socket: Socket): Promise<Buffer> => keepWhile(memory, KEPT.readAhead, () => readHead(socket))
  try {
    const request = await read(guest)
    const { host, port, ...head } = parseConnect(request)
    context = { ...context, host }
    const secrets = rules.secretsFor(host)
    checkHead(head, secrets)
    server = await connectServer([])
    await writeAll(server, [request], bounds)
    const response = await read(server)
    await writeAll(guest, [response], bounds)
    if (!/^HTTP\/1\.[01] 2\d\d/.test(response.toString('latin1', 0, 12))) {
      const full = Promise.withResolvers<never>()
      boundedPipe(server, guest, { memory, onFull: full.reject })
      await Promise.race([firstOf(guest, ['close']), full.promise])
      return
    }
    const first = await keepWhile(memory, KEPT.readAhead, () => readFirstBytes(guest, SILENCE_LIMIT_MS))
    const tls = first.form === 'tls' && tunnels.tls?.intercepts(port, first.name ?? host) === true ? tunnels.tls : null
    if (!tunnels.allows(host, { ...first, isIntercepted: tls !== null }))
      throw new RequestRefused('a tunnel that the policy denies', { isByPolicy: true })
    if (tls !== null && (first.name ?? host) !== host)
      throw new RequestRefused('a server name other than the host of CONNECT')
    const proxy = server
    // Only a verified certificate proves whom the proxy connected. A proxy of the sandbox's choice could read plain requests.
    const isProved = tls?.upstream.verifies(host) === true
    const tiedNames = isProved ? [host] : []
    const inner = { ...connection, tunnels: null, tiedNames, destination: { address: host, port } }
    const dial = (): Promise<Socket> => Promise.resolve(proxy)
    const allowsHost = (name: string): boolean => name === host
    if (tls !== null || first.form === 'http') await serveInner({ ...inner, sni: first.name, tls, dial, allowsHost })
    else {
      relay(guest, proxy, { secrets: first.form === 'tls' ? null : secrets, memory, turn, onRefused })
      await firstOf(guest, ['close'])
    }
  } catch (error) {
    if (!(error instanceof RequestRefused)) throw error
    const { message, violation, isByPolicy } = error
    const refused = new RequestRefused(message, { violation, isByPolicy, context })
    onRefused(refused)
    if (server !== null || !isByPolicy) return
    guest.end(renderDenial(refused))
    await firstOf(guest, ['finish', 'close'])
  } finally {
    server?.destroy()
  }
}

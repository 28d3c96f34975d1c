import { Agent, request } from 'node:https'
import { isIP } from 'node:net'
import { Readable } from 'node:stream'
import { connect as connectTls } from 'node:tls'
import { publicKeyFingerprint } from '../../lib/self-signed-certificate.ts'

/** HTTPS to servers that are checked in another way than by the name in their URL. Nothing is sent before the check. */
export type CheckedTls = {
  /** Like `fetch`, for one request. Follows no redirect. */
  send(url: URL, request: PinnedRequest): Promise<Response>
  /** Opens the connections of requests, and keeps them for the next ones. */
  readonly requests: Agent
  /** Opens the connections of WebSockets. */
  readonly upgrades: Agent
}

type PinnedRequest = {
  readonly method: 'GET' | 'POST'
  readonly headers: Readonly<Record<string, string>>
  /** Empty with GET. */
  readonly body: string
  readonly signal: AbortSignal
}

/** The server has another public key than the pinned one. Somebody else may have answered. */
export class PinMismatch extends Error {}

const HANDSHAKE_LIMIT_MS = 10_000

/**
 * Accepts the server with this key only: the SHA-256 of its public key, in hex. It is read at each connection. The handshake proves
 * that the server has the private key. Names, dates and certificate authorities don't matter.
 */
export function makePinnedTls(pin: () => string | null): CheckedTls {
  return makeTls({ servernameOf: (host) => (isIP(host) === 0 ? host : ''), pin })
}

/**
 * Accepts servers with a certificate for this name, whatever their address: the processes of one control plane have one certificate,
 * and workers reach each of them by its address. Null for a name that is an address itself.
 */
export function makeNamedTls(name: string): CheckedTls | null {
  return isIP(name.replace(/^\[|\]$/g, '')) === 0 ? makeTls({ servernameOf: () => name, pin: null }) : null
}

type Check = {
  readonly servernameOf: (host: string) => string
  /** The key that the server must have. Null: its certificate must be for the name, by the certificate authorities. */
  readonly pin: (() => string | null) | null
}

function makeTls({ servernameOf, pin }: Check): CheckedTls {
  const connect: Agent['createConnection'] = ({ host, port }, done) => {
    const name = host ?? ''
    const socket = connectTls({
      host: name,
      port: Number(port ?? 443),
      servername: servernameOf(name),
      ALPNProtocols: ['http/1.1'],
      rejectUnauthorized: pin === null, // the check below replaces that of the certificate authorities
    })
    const fail = (error: Error): void => {
      socket.destroy()
      done?.(error, socket)
    }
    const onTimeout = (): void => fail(new Error(`${name} did not finish the TLS handshake`))
    socket.setTimeout(HANDSHAKE_LIMIT_MS, onTimeout)
    socket.once('error', fail)
    socket.once('secureConnect', () => {
      socket.off('error', fail)
      socket.off('timeout', onTimeout)
      socket.setTimeout(0)
      if (pin === null) {
        done?.(null, socket)
        return
      }
      const certificate = socket.getPeerX509Certificate()
      const seen = certificate === undefined ? 'none' : publicKeyFingerprint(certificate.publicKey)
      if (seen === pin()) done?.(null, socket)
      else fail(new PinMismatch(describeMismatch(name, seen, pin())))
    })
    return undefined // Node waits for the callback then, so nothing is sent before the check
  }
  const makeAgent = (keepAlive: boolean): Agent =>
    Object.assign(new Agent({ keepAlive }), { createConnection: connect })
  const agent = makeAgent(true)
  return {
    requests: agent,
    upgrades: makeAgent(false),
    send: (url, { method, headers, body, signal }) =>
      new Promise((resolve, reject) => {
        const length = { 'content-length': String(Buffer.byteLength(body)) }
        const outgoing = request(url, { method, headers: { ...headers, ...length }, agent, signal })
        outgoing.on('error', reject)
        outgoing.on('response', (incoming) => {
          const stream = Readable.toWeb(incoming) as ReadableStream // the same class, which Node declares twice
          resolve(new Response(stream, { status: incoming.statusCode ?? 502 }))
        })
        outgoing.end(body)
      }),
  }
}

function describeMismatch(host: string, seen: string, pinned: string | null): string {
  return (
    `${host} has a certificate that the join token does not pin, so nothing was sent: the SHA-256 of its public key is ${seen}, ` +
    `and the token pins ${String(pinned)}. Somebody may intercept the connection. If a proxy ends TLS there, or the server uses ` +
    '--tls-cert, create the token with `sandyard worker token --unpinned`'
  )
}

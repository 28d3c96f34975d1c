import { isIP, type Socket } from 'node:net'
import { connect, createSecureContext, rootCertificates, type SecureContext, type TLSSocket } from 'node:tls'
import { matchesHost } from '../../../domain/network/host-pattern.ts'

/** How servers are verified. A later scoped entry wins over an earlier one. */
export type UpstreamTls = {
  readonly verify_upstream: boolean
  readonly scoped_verify_upstream: readonly { readonly pattern: string; readonly verify: boolean }[]
  /** Certificates in PEM that are trusted beside the usual ones. */
  readonly upstream_ca_certs: readonly string[]
  readonly scoped_upstream_ca_certs: readonly { readonly pattern: string; readonly certificate: string }[]
}

const LIMIT_MS = 30_000

export type UpstreamConnector = {
  /** Whether the certificate of a host is verified. */
  readonly verifies: (host: string) => boolean
  /** Begins TLS with a host over a connection, and offers protocols by ALPN. */
  readonly connect: (socket: Socket, host: string, protocols: readonly string[]) => Promise<TLSSocket>
}

/** Prepares the connections of one sandbox. Parsing all usual certificates takes milliseconds, so each list is parsed once. */
export function makeUpstreamConnector(settings: UpstreamTls): UpstreamConnector {
  const contexts = new Map<string, SecureContext>()
  return {
    verifies,
    connect: (socket, host, protocols) =>
      connectTls(socket, host, {
        rejectUnauthorized: verifies(host),
        secureContext: contextFor(host),
        ALPNProtocols: [...protocols],
      }),
  }

  function verifies(host: string): boolean {
    const scoped = settings.scoped_verify_upstream.findLast(({ pattern }) => matches(pattern, host))
    return scoped?.verify ?? settings.verify_upstream
  }

  function contextFor(host: string): SecureContext {
    const scoped = settings.scoped_upstream_ca_certs.filter(({ pattern }) => matches(pattern, host))
    const own = [...settings.upstream_ca_certs, ...scoped.map(({ certificate }) => certificate)]
    const key = own.join('\n')
    const context =
      contexts.get(key) ?? createSecureContext(own.length === 0 ? {} : { ca: [...rootCertificates, ...own] })
    contexts.set(key, context)
    return context
  }
}

type Verification = {
  readonly rejectUnauthorized: boolean
  readonly secureContext: SecureContext
  readonly ALPNProtocols: string[]
}

function connectTls(socket: Socket, host: string, verification: Verification): Promise<TLSSocket> {
  const { promise, resolve, reject } = Promise.withResolvers<TLSSocket>()
  const name = isIP(host) === 0 ? { servername: host } : { host }
  const upstream = connect({ socket, ...name, ...verification })
  const timer = setTimeout(
    () => upstream.destroy(new Error('the TLS handshake with the server took too long')),
    LIMIT_MS,
  )
  upstream.once('secureConnect', () => {
    clearTimeout(timer)
    upstream.off('error', reject)
    resolve(upstream)
  })
  upstream.once('error', reject)
  upstream.once('close', () => {
    clearTimeout(timer)
    reject(new Error('the server closed the connection'))
  })
  return promise
}

function matches(pattern: string, host: string): boolean {
  const value = pattern.toLowerCase()
  return matchesHost({ type: value.startsWith('*.') ? 'wildcard' : 'exact', value }, host)
}

import type { Socket } from 'node:net'
import type { FirstBytes } from '../../../domain/network/judge-connection.ts'
import type { ConnectionMemory } from '../connection-memory.ts'
import type { SandboxTurn } from '../sandbox-turns.ts'
import type { BodyBudget } from './body-budget.ts'
import type { HostSecrets, PreparedSecrets } from '../placeholders/host-secrets.ts'
import type { LeafCertificates } from './leaf-certificates.ts'
import type { RequestRefused } from '../request-refused.ts'
import type { UpstreamConnector } from './upstream-tls.ts'

type Tls = { readonly certificates: LeafCertificates; readonly upstream: UpstreamConnector }

export type TunnelRules = {
  readonly tls: (Tls & { readonly intercepts: (port: number, host: string) => boolean }) | null
  /** Whether the network policy allows a tunnel to a host, by the first bytes in it. */
  readonly allows: (host: string, first: FirstBytes & { readonly isIntercepted: boolean }) => boolean
}

export type InterceptedConnection = {
  /** The connection of the sandbox. Bytes that were read from it to judge it are put back with `unshift`. */
  readonly client: Socket
  /** The server name of the handshake in lower case, if it has one. */
  readonly sni: string | null
  readonly destination: { readonly address: string; readonly port: number }
  /** The names that the sandbox's own DNS answers tie to the destination. */
  readonly tiedNames: readonly string[]
  readonly secrets: PreparedSecrets
  /** Shared by all connections of the sandbox. */
  readonly budget: BodyBudget
  /** Shared by all connections of the sandbox. */
  readonly memory: ConnectionMemory
  /** Is awaited before work on a piece of the connection. */
  readonly turn: SandboxTurn
  /** Null for plain HTTP. */
  readonly tls: Tls | null
  /** What holds for tunnels by CONNECT to a proxy that is asked by plain HTTP. Null: there are none. */
  readonly tunnels: TunnelRules | null
  /** Whether the network policy allows requests to a host. */
  readonly allowsHost: (host: string) => boolean
  /** Connects to the destination, through the rules of the packet filter. */
  readonly dial: () => Promise<Socket>
  /** Is told once why the connection was cut, if a request was refused. */
  readonly onRefused: (refused: RequestRefused) => void
}

/** What requests of a connection may do. */
export type RequestRules = {
  /** The only host that requests may name: that of the TLS handshake. Null for plain HTTP. */
  readonly authority: string | null
  /** Throws `RequestRefused` for a host that the network policy denies. */
  readonly secretsFor: (host: string) => HostSecrets
}

export type ServedRequests = Pick<InterceptedConnection, 'memory' | 'turn' | 'onRefused'> & {
  /** The connection of the client, after TLS. */
  readonly guest: Socket
  readonly rules: RequestRules
  /** Connects to the server, with TLS if the client uses it, and offers protocols by ALPN. */
  readonly connectServer: (protocols: readonly string[]) => Promise<Socket>
}

import { readFileSync } from 'node:fs'
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net'
import { Duplex } from 'node:stream'
import { createServer as createTlsServer } from 'node:tls'
import type { TestContext } from 'node:test'
import type { CertificateAuthority, RunInterception } from '../../src/domain/network/interception.ts'
import type { RunSecret } from '../../src/domain/spec/secrets.ts'
import {
  CONNECTION_MEMORY_BYTES,
  makeConnectionMemory,
  type ConnectionMemory,
} from '../../src/worker/egress/connection-memory.ts'
import { makeBodyBudgets, type BodyBudget } from '../../src/worker/egress/intercept/body-budget.ts'
import { makeFairTurns } from '../../src/lib/turns/fair-turns.ts'
import { makeAuthority } from '../../src/lib/make-authority.ts'
import { openAuthority } from '../../src/worker/egress/intercept/certificate-authority.ts'
import { prepareSecrets } from '../../src/worker/egress/placeholders/host-secrets.ts'
import { cacheLeafCertificates } from '../../src/worker/egress/intercept/leaf-certificates.ts'
import type { RequestRefused } from '../../src/worker/egress/request-refused.ts'
import { serveIntercepted } from '../../src/worker/egress/intercept/serve-intercepted.ts'
import { makeSandboxTurn } from '../../src/worker/egress/sandbox-turns.ts'
import { makeUpstreamConnector } from '../../src/worker/egress/intercept/upstream-tls.ts'
import type { TestCertificate } from './certificates.ts'
import { waitUntil } from './wait.ts'

/** A secret for `api.test` with the placeholder `$MSB_KEY`. */
export function testSecret(changes: Partial<RunSecret> = {}): RunSecret {
  return {
    env_var: 'KEY',
    placeholder: '$MSB_KEY',
    value: 'the-real-value',
    allowed_hosts: [{ type: 'exact', value: 'api.test' }],
    substitution: { headers: true, basic_auth: true, header_fields: null, query: true, body: true },
    passthrough_hosts: [],
    violation_action: { type: 'block_and_log' },
    require_tls_identity: true,
    ...changes,
  }
}

/** Interception of TLS on some ports, of all hosts, whose servers are not verified. */
export function interceptAll(authority: CertificateAuthority, ports: readonly number[] = [443]): RunInterception {
  return {
    intercepted_ports: ports,
    bypass: [],
    block_quic: false,
    verify_upstream: false,
    scoped_verify_upstream: [],
    upstream_ca_certs: [],
    scoped_upstream_ca_certs: [],
    cache: { capacity: 1_000, validity_hours: 24 },
    authority,
  }
}

export type Upstream = { readonly port: number; readonly received: () => string }

/** A TLS server that records what arrives and answers by a handler. */
export async function openUpstream(
  t: TestContext,
  certificate: TestCertificate,
  onConnection: (socket: Duplex) => void,
): Promise<Upstream> {
  const parts: Buffer[] = []
  const options = { cert: readFileSync(certificate.certFile), key: readFileSync(certificate.keyFile) }
  const server = createTlsServer(options, (socket) => {
    socket.on('error', () => socket.destroy())
    // An HTTP server takes a socket's bytes without events, so it gets a stream of another kind.
    const recorded = new Duplex({
      read: () => socket.resume(),
      write: (bytes: Buffer, _encoding, done) => socket.write(bytes, done),
      final: (done) => socket.end(done),
    })
    recorded.on('error', () => socket.destroy())
    socket.on('data', (bytes: Buffer) => {
      parts.push(bytes)
      if (!recorded.push(bytes)) socket.pause()
    })
    socket.on('end', () => recorded.push(null))
    socket.on('close', () => recorded.destroy())
    onConnection(recorded)
  })
  return { port: await listen(t, server), received: () => Buffer.concat(parts).toString('latin1') }
}

type InterceptorOptions = {
  readonly upstreamPort: number
  readonly caFile: string
  readonly secrets: readonly RunSecret[]
  readonly sni?: string
  readonly tiedNames?: readonly string[]
  readonly verify?: boolean
  /** Serves plain HTTP with tunnels by CONNECT. Absent: TLS. */
  readonly isPlain?: boolean
  /** For bodies that are changed as a whole. Absent: 32 MiB. */
  readonly budget?: BodyBudget
  /** How much the connections may keep. Absent: as much as those of a sandbox. */
  readonly memoryBytes?: number
  /** Whether the policy allows a host. Absent: all. */
  readonly allowsHost?: (host: string) => boolean
}

export type Interceptor = {
  readonly port: number
  readonly ca: string
  readonly refused: readonly RequestRefused[]
  /** How many connections of clients are open. */
  readonly open: () => number
}

/** Listens on loopback and serves each connection as an intercepted one to `sni`. */
export async function openInterceptor(t: TestContext, options: InterceptorOptions): Promise<Interceptor> {
  const { upstreamPort, caFile, secrets, sni = 'api.test', tiedNames = [sni], verify = true, isPlain = false } = options
  const { allowsHost = () => true, budget = makeBodyBudgets({ capacity: 64 * 1024 * 1024, idleLimitMs: 60_000 })('') } =
    options
  const { memoryBytes = CONNECTION_MEMORY_BYTES } = options
  const memory = makeConnectionMemory(memoryBytes)('')
  // no two pieces begin in a turn, as if each took long
  const turn = makeSandboxTurn(makeFairTurns({ budgetMs: 0, nowMs: () => 0 }), '', memory)
  const authority = await makeAuthority('test', { nowMs: Date.now() })
  const certificates = cacheLeafCertificates({
    sign: await openAuthority(authority),
    capacity: 10,
    validityHours: 24,
    now: () => Date.now(),
  })
  const upstream = makeUpstreamConnector({
    verify_upstream: verify,
    scoped_verify_upstream: [],
    upstream_ca_certs: [readFileSync(caFile, 'utf8')],
    scoped_upstream_ca_certs: [],
  })
  const refused: RequestRefused[] = []
  let open = 0
  const server = createServer({ allowHalfOpen: true }, (client) => {
    open += 1
    client.on('close', () => (open -= 1))
    void serveIntercepted({
      client,
      sni,
      destination: { address: '127.0.0.1', port: 443 },
      tiedNames,
      secrets: prepareSecrets(secrets),
      budget,
      memory,
      turn,
      tls: isPlain ? null : { certificates, upstream },
      tunnels: isPlain
        ? { tls: { certificates, upstream, intercepts: (port) => port === 443 }, allows: (host) => allowsHost(host) }
        : null,
      allowsHost,
      dial: () => Promise.resolve(connect(upstreamPort, '127.0.0.1')),
      onRefused: (error) => refused.push(error),
    })
  })
  const port = await listen(t, server)
  t.after(() => waitUntil(() => isFree(memory, memoryBytes)))
  return { port, ca: authority.certificate, refused, open: () => open }
}

/** Whether connections that have ended keep nothing of so many bytes. */
export function isFree(memory: ConnectionMemory, bytes: number): boolean {
  try {
    memory.reserve(bytes)()
    return true
  } catch {
    return false
  }
}

async function listen(t: TestContext, server: Server): Promise<number> {
  const sockets = new Set<Socket>()
  server.on('connection', (socket: Socket) => sockets.add(socket))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  return (server.address() as AddressInfo).port
}

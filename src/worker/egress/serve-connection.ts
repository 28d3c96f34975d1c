import type { Socket } from 'node:net'
import { cidr } from '../../domain/cidr.ts'
import {
  judgeConnection,
  needsFirstBytes,
  NO_FIRST_BYTES,
  type Connection,
  type ConnectionRefusal,
  type FirstBytes,
} from '../../domain/network/judge-connection.ts'
import { KEPT, keepUntilClosed, keepWhile, type ConnectionMemory } from './connection-memory.ts'
import { dial } from './dial.ts'
import { FIRST_BYTES_MAX } from './first-bytes.ts'
import type { BodyBudget } from './intercept/body-budget.ts'
import { judgeSecrets } from './placeholders/host-secrets.ts'
import type { TunnelRules } from './intercept/intercepted-connection.ts'
import { RequestRefused } from './request-refused.ts'
import { serveIntercepted } from './intercept/serve-intercepted.ts'
import type { EgressRefusal } from './messages.ts'
import type { EgressSandbox } from './prepare-sandbox.ts'
import { FIRST_BYTES_LIMIT_MS, readFirstBytes } from './read-first-bytes.ts'
import { relay } from './relay.ts'
import type { SandboxTurn } from './sandbox-turns.ts'
import { resetSocket } from '../../lib/reset-socket.ts'

/** How long a client may be silent if its first bytes tell only whether requests can be read. Servers that speak first wait for it. */
const REQUEST_LIMIT_MS = 1_000

type Deps = {
  /** The names that are tied to an address for this sandbox. */
  readonly namesOf: (address: string) => Promise<readonly string[]>
  /** Shared by all connections of the sandbox. */
  readonly budget: BodyBudget
  readonly memory: ConnectionMemory
  readonly turn: SandboxTurn
  readonly onRefused: (refusal: EgressRefusal) => void
}

const REASONS: Readonly<Record<NonNullable<ConnectionRefusal>, string>> = {
  address: 'the network policy denies this address',
  name: 'the network policy denies this name',
  encrypted_name: 'the network policy decides by name, and the name is encrypted or in too many pieces',
  strict: 'network.strict demands that requests can be read',
}

/** Judges a connection of a sandbox and, if it is allowed, passes it on until its end. It never rejects. */
export async function serveConnection(client: Socket, sandbox: EgressSandbox, deps: Deps): Promise<void> {
  const { localAddress: address = '', localPort: port = 0 } = client // the destination, because the kernel redirected it
  const destination = { address, port }
  const { secrets, gateway } = sandbox
  const { budget, memory, turn } = deps
  let sni: string | null = null
  client.on('error', () => client.destroy())
  const refuse = (reason: string, refused: RequestRefused | null): void => {
    deps.onRefused({
      reason,
      destination,
      sni,
      violation: refused?.violation ?? null,
      request: refused?.context ?? null,
    })
  }
  const onRefused = (refused: RequestRefused): void => {
    refuse(refused.message, refused)
  }
  try {
    keepUntilClosed(memory, KEPT.connection, client)
    const connection: Connection = { peer: cidr(address), port, tied: await deps.namesOf(address) }
    const first = await keepWhile(memory, FIRST_BYTES_MAX, () => lookAt(client, sandbox, connection))
    if (first.form === 'tls') sni = first.name
    const tls = first.form === 'tls' && sandbox.tls?.intercepts(port, sni ?? address) === true ? sandbox.tls : null
    const judge = (name: string | null): ConnectionRefusal =>
      judgeConnection(sandbox, connection, { ...first, name, isIntercepted: tls !== null })
    const connect = (): Promise<Socket> => dial({ ...destination, from: gateway, client })
    const refusal = judge(first.name)
    if (tls !== null || first.form === 'http') {
      // a request gets an answer that says why it is refused
      const allowsHost = (host: string): boolean => (tls === null ? judge(host) : refusal) === null
      const common = { client, destination, sni, secrets, budget, memory, turn, tiedNames: connection.tied }
      const allows: TunnelRules['allows'] = (host, inner) =>
        judgeConnection(sandbox, connection, { ...inner, name: inner.name ?? host }) === null
      const tunnels = tls === null ? { tls: sandbox.tls, allows } : null
      await serveIntercepted({ ...common, tls, tunnels, allowsHost, dial: connect, onRefused })
      return
    }
    if (refusal !== null) {
      refuse(REASONS[refusal], null)
      resetSocket(client)
      return
    }
    const facts = { host: address, tiedNames: connection.tied, isVerified: false }
    const searched = first.form === 'tls' ? null : judgeSecrets(secrets, facts)
    const server = await keepWhile(memory, KEPT.stalledRelay, connect)
    relay(client, server, { secrets: searched, memory, turn, onRefused })
  } catch (error) {
    if (error instanceof RequestRefused) onRefused(error)
    resetSocket(client)
  }
}

function lookAt(client: Socket, sandbox: EgressSandbox, connection: Connection): Promise<FirstBytes> {
  if (needsFirstBytes(sandbox, connection)) return readFirstBytes(client, FIRST_BYTES_LIMIT_MS)
  const readsRequests = sandbox.tls !== null || sandbox.secrets.secrets.length > 0
  return readsRequests ? readFirstBytes(client, REQUEST_LIMIT_MS) : Promise.resolve(NO_FIRST_BYTES)
}

import { connect, type Socket } from 'node:net'
import { cidr } from '../../domain/cidr.ts'
import {
  judgeConnection,
  needsFirstBytes,
  NO_FIRST_BYTES,
  type Connection,
  type ConnectionRefusal,
} from '../../domain/network/judge-connection.ts'
import type { BodyBudget } from './intercept/body-budget.ts'
import { serveIntercepted } from './intercept/serve-intercepted.ts'
import type { EgressSettings } from './messages.ts'
import { readFirstBytes } from './read-first-bytes.ts'

const DIAL_LIMIT_MS = 30_000
/** How often the kernel asks the other side of an idle connection whether it is still there. */
const KEEP_ALIVE_MS = 60_000

type Deps = {
  /** The names that are tied to an address for this sandbox. */
  readonly namesOf: (address: string) => Promise<readonly string[]>
  /** Shared by all connections of the process. */
  readonly budget: BodyBudget
}

/** Judges a connection of a sandbox and, if it is allowed, passes it on until its end. It never rejects. */
export async function serveConnection(client: Socket, settings: EgressSettings, deps: Deps): Promise<void> {
  const { localAddress: address = '', localPort: port = 0 } = client // the destination, because the kernel redirected it
  const destination = { address, port }
  client.on('error', () => client.destroy())
  try {
    const connection: Connection = { peer: cidr(address), port, tied: await deps.namesOf(address) }
    const first = needsFirstBytes(settings, connection) ? await readFirstBytes(client) : NO_FIRST_BYTES
    const judge = (name: string | null): ConnectionRefusal =>
      judgeConnection(settings, connection, { ...first, name, isIntercepted: false })
    const connectServer = (): Promise<Socket> => dial({ ...destination, from: settings.gateway, client })
    if (first.form === 'http') {
      const plain = { sni: null, tls: null, secrets: [], budget: deps.budget, tiedNames: connection.tied }
      const allowsHost = (host: string): boolean => judge(host) === null
      await serveIntercepted({
        ...plain,
        client,
        destination,
        allowsHost,
        dial: connectServer,
        onRefused: () => undefined,
      })
      return
    }
    const refusal = judge(first.name)
    if (refusal !== null) throw new Error(refusal)
    relay(client, await connectServer())
  } catch {
    client.resetAndDestroy()
  }
}

type Dial = { readonly address: string; readonly port: number; readonly from: string; readonly client: Socket }

/** Connects to a destination, from an address by which the packet filter knows the sandbox. */
async function dial({ address, port, from, client }: Dial): Promise<Socket> {
  const { promise, resolve, reject } = Promise.withResolvers<Socket>()
  const server = connect({ host: address, port, localAddress: from, allowHalfOpen: true, noDelay: true })
  const timer = setTimeout(() => server.destroy(new Error('no answer')), DIAL_LIMIT_MS)
  const abort = (): void => void server.destroy(new Error('the client left'))
  client.once('close', abort)
  server.once('connect', () => {
    resolve(server)
  })
  server.on('error', reject)
  try {
    return await promise
  } finally {
    clearTimeout(timer)
    client.off('close', abort)
  }
}

/** Copies bytes both ways. The end of one direction ends it on the other side; a failure of one side resets the other. */
function relay(client: Socket, server: Socket): void {
  for (const [one, other] of [
    [client, server],
    [server, client],
  ] as const) {
    one.setKeepAlive(true, KEEP_ALIVE_MS)
    one.setTimeout(0)
    one.pipe(other)
    one.on('error', () => other.resetAndDestroy())
    one.on('close', () => {
      if (!one.readableEnded) other.resetAndDestroy()
    })
  }
}

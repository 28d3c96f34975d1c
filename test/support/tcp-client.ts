import { asBytes } from '../../src/channel/cbor.ts'
import type { TcpTarget } from '../../src/worker/channel/guest.ts'
import type { AgentClient, Received } from './agent-client.ts'

/** One connection of a channel client into its sandbox. */
export type TcpClient = {
  readonly id: number
  send(data: Buffer | string): void
  /** Ends the direction from the client to the sandbox. */
  end(): void
  /** Closes both directions at once. */
  close(): void
  /** Resolves once the connection is open. Rejects with the message of a failure. */
  connected(): Promise<void>
  /** The types of the received messages in order. Consecutive data messages are listed as one `data`. */
  types(): readonly string[]
  /** All received data. */
  data(): Buffer
  dataBytes(): number
  /** Resolves with the message that ends the session. */
  last(limitMs?: number): Promise<Received>
}

/** Opens a connection as session `id`, which must be above the ids of the client's processes. */
export function openTcp(client: AgentClient, id: number, target: TcpTarget): TcpClient {
  const own = (): readonly Received[] => client.received.filter((message) => message.id === id)
  const pieces = (): readonly Uint8Array[] =>
    own()
      .filter(({ type }) => type === 'core.tcp.data')
      .map(({ payload }) => asBytes(payload['data']))
  client.send(id, 'core.tcp.connect', target)
  return {
    id,
    send(data) {
      client.send(id, 'core.tcp.data', { data: Buffer.from(data) })
    },
    end() {
      client.send(id, 'core.tcp.eof', {})
    },
    close() {
      client.send(id, 'core.tcp.close', {})
    },
    async connected() {
      const { type, payload } = await client.next(
        (message) => message.id === id && message.type !== 'core.tcp.data',
        LIMIT_MS,
      )
      if (type !== 'core.tcp.connected') throw new Error(`${type}: ${JSON.stringify(payload)}`)
    },
    types: () =>
      own()
        .map(({ type }) => type.slice('core.tcp.'.length))
        .filter((type, at, all) => type !== 'data' || all[at - 1] !== 'data'),
    data: () => Buffer.concat(pieces()),
    dataBytes: () => pieces().reduce((sum, { length }) => sum + length, 0),
    last: (limitMs = LIMIT_MS) => client.next((message) => message.id === id && (message.flags & 1) === 1, limitMs),
  }
}

const LIMIT_MS = 60_000

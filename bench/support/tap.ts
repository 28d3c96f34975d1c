import { once } from 'node:events'
import { connect, createServer, type AddressInfo } from 'node:net'

/** What a client and the server said to each other, and when, in milliseconds since 1970. */
export type Tap = {
  readonly url: string
  /** Returns a function with the time of the first message of each kind since `clear`. It throws if there was none. */
  times(): (kind: MessageKind) => number
  clear(): void
} & AsyncDisposable

/** The messages by which a create with a first command is cut into phases. The server’s frames are not masked. */
const FROM_CLIENT = { create: 'POST /v1/sandboxes?', channel: '/agent HTTP/1.1' } as const
const FROM_SERVER = {
  ready: 'core.ready',
  started: 'core.exec.started',
  exited: 'core.exec.exited',
} as const
export type MessageKind = keyof typeof FROM_CLIENT | keyof typeof FROM_SERVER | 'created' | 'accepted' | 'command'

/** Starts a proxy on loopback that passes bytes on at once and notes when the messages pass. */
export async function startTap(host: string, port: number): Promise<Tap> {
  const times = new Map<MessageKind, number>()
  const note = (kind: MessageKind): void => {
    if (!times.has(kind)) times.set(kind, nowMs())
  }
  const server = createServer((client) => {
    const upstream = connect({ host, port, noDelay: true })
    client.setNoDelay(true)
    let isReady = false
    let asked: 'created' | 'accepted' | null = null
    client.on('data', (data) => {
      const text = data.toString('latin1')
      if (isReady) note('command')
      for (const [kind, mark] of entriesOf(FROM_CLIENT)) {
        if (!text.includes(mark)) continue
        note(kind)
        asked = kind === 'create' ? 'created' : 'accepted'
      }
      upstream.write(data)
    })
    upstream.on('data', (data) => {
      if (asked !== null) note(asked)
      asked = null
      const text = data.toString('latin1')
      for (const [kind, mark] of entriesOf(FROM_SERVER)) if (text.includes(mark)) note(kind)
      isReady ||= text.includes(FROM_SERVER.ready)
      client.write(data)
    })
    const end = (): void => {
      client.destroy()
      upstream.destroy()
    }
    for (const socket of [client, upstream]) socket.on('close', end).on('error', end)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port: own } = server.address() as AddressInfo // it listens on a port
  return {
    url: `http://127.0.0.1:${String(own)}`,
    times() {
      const noted = new Map(times)
      return (kind) => {
        const ms = noted.get(kind)
        if (ms === undefined) throw new Error(`no message '${kind}' has passed`)
        return ms
      }
    },
    clear: () => {
      times.clear()
    },
    [Symbol.asyncDispose]: () => {
      server.close()
      return Promise.resolve()
    },
  }
}

/** The time in milliseconds since 1970, with fractions. */
export function nowMs(): number {
  return performance.timeOrigin + performance.now()
}

function entriesOf<Key extends string>(record: Readonly<Record<Key, string>>): readonly (readonly [Key, string])[] {
  return Object.entries(record) as [Key, string][] // the keys of a literal
}

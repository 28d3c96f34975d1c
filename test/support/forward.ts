import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'

/** A TCP port that leads elsewhere. `address` is `HOST:PORT`. */
export type Forward = { readonly address: string; readonly port: number; close(): Promise<void> }

/** Listens on a free port of `host`, and forwards each connection to `target`. */
export async function startForward(
  host: string,
  target: { readonly host: string; readonly port: number },
): Promise<Forward> {
  const open = new Set<Socket>()
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (client) => {
    const other = connect({ ...target, allowHalfOpen: true })
    for (const [from, to] of [
      [client, other],
      [other, client],
    ] as const) {
      open.add(from)
      from.on('error', () => to.destroy())
      from.on('close', () => open.delete(from))
      from.pipe(to)
    }
  })
  server.listen(0, host)
  await once(server, 'listening')
  const bound = server.address()
  const port = typeof bound === 'object' && bound !== null ? bound.port : 0
  return {
    address: `${host}:${String(port)}`,
    port,
    async close() {
      for (const socket of open) socket.destroy()
      server.close()
      await once(server, 'close')
    },
  }
}

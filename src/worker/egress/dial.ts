import { connect, type Socket } from 'node:net'

const DIAL_LIMIT_MS = 30_000

export type Dial = {
  readonly address: string
  readonly port: number
  /** The address by which the packet filter knows the sandbox. */
  readonly from: string
  /** The connection of the sandbox. Its end ends the attempt. */
  readonly client: Socket
}

/** Connects to a destination for a sandbox. Rejects if the packet filter or the server refuses, the client has left, or after 30 s. */
export async function dial({ address, port, from, client }: Dial): Promise<Socket> {
  if (client.destroyed) throw new Error('the client left')
  const { promise, resolve, reject } = Promise.withResolvers<Socket>()
  const server = connect({ host: address, port, localAddress: from, allowHalfOpen: true, noDelay: true })
  const timer = setTimeout(() => server.destroy(new Error('no answer')), DIAL_LIMIT_MS)
  const abort = (): void => void server.destroy(new Error('the client left'))
  client.once('close', abort)
  client.read(0) // otherwise nobody notices that it is reset
  server.once('connect', () => {
    resolve(server)
  })
  server.once('error', reject)
  try {
    return await promise
  } finally {
    clearTimeout(timer)
    client.off('close', abort)
    server.off('error', reject)
    server.on('error', () => server.destroy())
  }
}

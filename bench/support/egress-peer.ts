/**
 * A process in a network namespace that serves bytes, or fetches them and measures. Its parent sends requests over IPC.
 * A server answers a line with a number by so many bytes, and a line with 0 by one byte.
 */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { Resolver } from 'node:dns/promises'
import { connect, createServer, type Socket } from 'node:net'
import { connect as connectTls, createServer as createTlsServer } from 'node:tls'
import type { PeerAsk } from './egress-world.ts'

const PIECE = Buffer.alloc(256 * 1024, 'sandyard ')

const HANDLERS: { readonly [Kind in PeerAsk['kind']]: (ask: Extract<PeerAsk, { kind: Kind }>) => Promise<number> } = {
  async serve({ plainPort, tlsPort, certFile, keyFile }) {
    const servers = [
      createServer(answer).listen(plainPort, '0.0.0.0'),
      createTlsServer({ cert: readFileSync(certFile), key: readFileSync(keyFile) }, answer).listen(tlsPort, '0.0.0.0'),
    ]
    await Promise.all(servers.map((server) => once(server, 'listening')))
    return 0
  },
  async lookUp({ server, name }) {
    const resolver = new Resolver()
    resolver.setServers([server])
    return (await resolver.resolve4(name)).length
  },
  async fetch(ask) {
    const beganMs = performance.now()
    const socket = open(ask)
    const path = ask.bytes === 0 ? '/1' : `/${String(ask.bytes)}`
    socket.write(`GET ${path} HTTP/1.1\r\nHost: ${ask.host}\r\nConnection: close\r\n\r\n`)
    let came = 0
    for await (const chunk of socket as AsyncIterable<Buffer>) came += chunk.length
    if (came < ask.bytes) throw new Error(`${String(came)} bytes came`)
    return performance.now() - beganMs
  },
}

function open({ address, port, host, isTls }: Extract<PeerAsk, { kind: 'fetch' }>): Socket {
  return isTls
    ? connectTls({ host: address, port, servername: host, rejectUnauthorized: false })
    : connect({ host: address, port, noDelay: true })
}

/** Answers one request with so many bytes as its path says. */
function answer(socket: Socket): void {
  socket.on('error', () => socket.destroy())
  socket.once('data', (request: Buffer) => {
    const bytes = Number(/^GET \/(\d+)/.exec(request.toString('latin1'))?.[1] ?? 1)
    void send(socket, bytes)
  })
}

async function send(socket: Socket, bytes: number): Promise<void> {
  socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${String(bytes)}\r\nConnection: close\r\n\r\n`)
  for (let left = bytes; left > 0; left -= PIECE.length) {
    if (!socket.write(left < PIECE.length ? PIECE.subarray(0, left) : PIECE)) await once(socket, 'drain')
  }
  socket.end()
}

process.on('message', ({ id, ask }: { readonly id: number; readonly ask: PeerAsk }) => {
  // each handler takes the requests of its own kind
  const handle = HANDLERS[ask.kind] as (ask: PeerAsk) => Promise<number>
  handle(ask).then(
    (result) => process.send?.({ id, result }),
    (error: unknown) => process.send?.({ id, error: String(error) }),
  )
})

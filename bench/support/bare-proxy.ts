/**
 * Runs a bare proxy as a process: `node:http` with connections that are kept, and nothing else. Its argument is the port of what it
 * leads to. The process prints its own port.
 */
import { Agent, createServer, request } from 'node:http'

const target = Number(process.argv[2])
const agent = new Agent({ keepAlive: true })
const server = createServer((incoming, outgoing) => {
  const asked = request({ agent, port: target, path: incoming.url, method: incoming.method, headers: incoming.headers })
  asked.on('response', (reply) => {
    outgoing.writeHead(reply.statusCode ?? 502, reply.headers)
    reply.pipe(outgoing)
  })
  incoming.pipe(asked)
})
server.listen(0, '127.0.0.1', () => {
  const address = server.address()
  process.stdout.write(`${String(typeof address === 'object' && address !== null ? address.port : 0)}\n`)
})
process.once('SIGTERM', () => process.exit(0))

/**
 * Runs a bare `node:http` server as a process. The process prints its port and answers every request with the bytes
 * that it has read from standard input.
 */
import { createServer } from 'node:http'
import { buffer } from 'node:stream/consumers'

const body = await buffer(process.stdin)
const headers = { 'content-type': 'application/json; charset=utf-8', 'content-length': String(body.length) }
const server = createServer((_request, response) => {
  response.writeHead(200, headers).end(body)
})
server.listen(0, '127.0.0.1', () => {
  const address = server.address()
  process.stdout.write(`${String(typeof address === 'object' && address !== null ? address.port : 0)}\n`)
})
process.once('SIGTERM', () => process.exit(0))

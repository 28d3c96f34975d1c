/**
 * A server that answers each post with 204. Prints its port; then, for each line that it reads, how many posts and
 * different messages it got since the last.
 */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createInterface } from 'node:readline'

let posts = 0
const messages = new Set<string>()
const server = createServer((request, response) => {
  request.resume()
  request.on('end', () => {
    posts += 1
    messages.add(`${request.url ?? ''} ${String(request.headers['webhook-id'])}`)
    response.writeHead(204).end()
  })
})
server.keepAliveTimeout = 60_000
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`${String((server.address() as AddressInfo).port)}\n`)
})
createInterface({ input: process.stdin }).on('line', (line) => {
  process.stdout.write(`${JSON.stringify({ posts, messages: messages.size })}\n`)
  if (line !== 'reset') return
  posts = 0
  messages.clear()
})

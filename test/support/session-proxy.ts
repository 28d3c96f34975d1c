import { once } from 'node:events'
import { createServer, request, type IncomingMessage } from 'node:http'
import { connect, type AddressInfo } from 'node:net'
import type { RealServer } from './server.ts'

/**
 * A session in front of a server, by a key in place of the cookie: it tells the page who is signed in, and passes everything
 * else on.
 */
export async function startSessionProxy(
  { url, key: ownerKey }: Pick<RealServer, 'url' | 'key'>,
  role: 'owner' | 'viewer',
) {
  const target = new URL(url)
  const key = role === 'owner' ? ownerKey : await makeReadKey(url, ownerKey)
  const headersOf = ({ headers }: IncomingMessage) => ({ ...headers, authorization: `Bearer ${key}` })
  const org = { id: '01890000-0000-7000-8000-000000000001', name: 'Default', slug: 'default' }
  const user = { id: '01890000-0000-7000-8000-000000000002', label: 'Ann', redacted_email: 'a…@example.com' }
  const replies: Readonly<Record<string, unknown>> = {
    '/auth/session': { user, org, role, orgs: [{ ...org, role }], csrf_token: 'x', is_operator: role === 'owner', expires_at: '2030-01-01T00:00:00Z' }, // prettier-ignore
    '/auth/options': { oidc: null },
  }
  const server = createServer((asked, reply) => {
    const own = replies[asked.url ?? '']
    if (own !== undefined) {
      reply.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(own))
      return
    }
    const { method, url: path } = asked
    const onward = request({ host: target.hostname, port: target.port, path, method, headers: headersOf(asked) })
    onward.on('response', (answer) => answer.pipe(reply.writeHead(answer.statusCode ?? 500, answer.headers)))
    onward.on('error', () => reply.destroy())
    reply.on('close', () => onward.destroy())
    asked.pipe(onward)
  })
  server.on('upgrade', (asked: IncomingMessage, socket, head: Buffer) => {
    const onward = connect(Number(target.port), target.hostname)
    const lines = Object.entries(headersOf(asked)).map(([name, value]) => `${name}: ${String(value)}\r\n`)
    onward.write(`GET ${asked.url ?? ''} HTTP/1.1\r\n${lines.join('')}\r\n`)
    onward.write(head)
    onward.pipe(socket).pipe(onward)
    onward.on('error', () => socket.destroy())
    socket.on('error', () => onward.destroy())
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  return {
    url: `http://127.0.0.1:${String((server.address() as AddressInfo).port)}`,
    close() {
      server.closeAllConnections()
      server.close()
    },
  }
}

async function makeReadKey(url: string, key: string): Promise<string> {
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' }
  const body = JSON.stringify({ name: `viewer ${String(Math.random())}`, scopes: ['read'] })
  const reply = await fetch(`${url}/v1/api-keys`, { method: 'POST', headers, body })
  return ((await reply.json()) as { readonly key: string }).key
}

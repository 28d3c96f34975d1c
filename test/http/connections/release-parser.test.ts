import assert from 'node:assert/strict'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { test, type TestContext } from 'node:test'
import { makeLongWaits } from '../../../src/http/connections/release-parser.ts'
import { openConnection, type RawConnection } from '../../support/raw-http.ts'
import { waitUntil } from '../../support/wait.ts'

type Held = { readonly request: IncomingMessage; readonly response: ServerResponse }

/** A bare server of Node that holds what asks for /held. */
async function listen(t: TestContext): Promise<{ readonly port: number; readonly held: Held[] }> {
  const held: Held[] = []
  const server = createServer((request, response) => {
    if (request.url === '/held') held.push({ request, response })
    else response.end('other')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  const address = server.address()
  return { port: typeof address === 'object' && address !== null ? address.port : 0, held }
}

function open(t: TestContext, port: number): RawConnection {
  const connection = openConnection(port)
  t.after(() => connection.socket.destroy())
  return connection
}

const get = (path: string): string => `GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`
const hasParser = ({ request }: Held): boolean => Reflect.get(request.socket, 'parser') !== null

test('a request that waits for long gives its parser back', async (t) => {
  const { port, held } = await listen(t)
  const { socket, received, isClosed } = open(t, port)
  socket.write(get('/held'))
  const one = await waitUntil(() => held[0])
  makeLongWaits(() => performance.now()).add(one.request, one.response)
  await waitUntil(() => !hasParser(one))
  one.response.end('reply')
  await waitUntil(isClosed)
  assert.match(received(), /connection: close/i)
})

test('where the connections of Node are not as they are known, they are left alone', async (t) => {
  const { port, held } = await listen(t)
  const changed = open(t, port)
  changed.socket.write(get('/held'))
  const one = await waitUntil(() => held[0])
  const other = open(t, port)
  other.socket.write(get('/held'))
  const known = await waitUntil(() => held[1])
  // A later Node may call the listener that feeds the parser something else.
  for (const feed of one.request.socket.listeners('data')) Object.defineProperty(feed, 'name', { value: 'feed' })
  const waits = makeLongWaits(() => performance.now())
  for (const { request, response } of [one, known]) waits.add(request, response)
  await waitUntil(() => !hasParser(known)) // the sweep was there
  assert.ok(hasParser(one))
  one.response.end('reply')
  changed.socket.write(get('/other'))
  await waitUntil(() => changed.received().endsWith('other'))
  assert.match(changed.received(), /keep-alive/i)
})

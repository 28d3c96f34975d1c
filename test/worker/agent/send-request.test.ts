import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Agent, createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { waitUntil } from '../../support/wait.ts'
import { isSuccess, sendRequest, type Answer } from '../../../src/worker/agent/send-request.ts'

/** Starts a server that answers by `listener`. Returns what sends it a request over kept connections. */
async function serve(
  t: TestContext,
  listener: RequestListener,
): Promise<(options?: { readonly signal?: AbortSignal; readonly statusLimitMs?: number }) => Promise<Answer>> {
  const server = createServer(listener).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const agent = new Agent({ keepAlive: true })
  t.after(() => {
    agent.destroy()
    server.closeAllConnections()
    server.close()
  })
  const { port } = server.address() as AddressInfo
  const sent = {
    method: 'POST',
    headers: { authorization: 'Bearer secret' },
    body: '{"é":1}',
    limitMs: 60_000,
  } as const
  return ({ signal = new AbortController().signal, ...limits } = {}) =>
    sendRequest(new URL(`http://127.0.0.1:${String(port)}/`), { ...sent, agent, signal, ...limits })
}

test('the status arrives before the body, and the next request uses the same connection', async (t) => {
  const ports = new Set<number | undefined>()
  const finish: (() => void)[] = []
  const send = await serve(t, (request, response) => {
    ports.add(request.socket.remotePort)
    response.flushHeaders()
    void request.toArray().then((pieces) => finish.push(() => response.end(Buffer.concat(pieces))))
  })
  for (let count = 0; count < 3; count++) {
    const answer = await send()
    assert.ok(isSuccess(answer))
    const text = answer.text()
    const end = await waitUntil(() => finish.shift())
    end()
    assert.equal(await text, '{"é":1}')
  }
  assert.equal(ports.size, 1)
})

test('a redirect is not followed, so no other server gets the credential', async (t) => {
  let requests = 0
  const send = await serve(t, (_request, response) => {
    requests += 1
    response.writeHead(307, { location: '/' }).end()
  })
  const answer = await send()
  assert.deepEqual([answer.status, isSuccess(answer), await answer.text(), requests], [307, false, '', 1])
})

test('an abort ends a request that has its status, and one that has none, with the reason', async (t) => {
  const send = await serve(t, (_request, response) => response.flushHeaders())
  const abort = new AbortController()
  const answer = await send({ signal: abort.signal })
  const text = answer.text()
  abort.abort(new Error('the worker ends'))
  await assert.rejects(text, /the worker ends/)
  await assert.rejects(send({ signal: abort.signal }), /the worker ends/)
})

test('a server that sends no status is given up', async (t) => {
  const send = await serve(t, () => undefined)
  await assert.rejects(send({ statusLimitMs: 50 }), /did not answer for 50 ms/)
})

test('an answer that is cut off is no answer', async (t) => {
  const send = await serve(t, (_request, response) => {
    response.writeHead(200, { 'content-length': '100' }).write('{')
    setImmediate(() => response.destroy())
  })
  await assert.rejects(async () => (await send()).text())
})

import assert from 'node:assert/strict'
import { connect } from 'node:net'
import { test } from 'node:test'
import { assertReplyMatchesContract } from '../../support/contract.ts'
import {
  openBusyWorld,
  createExampleObjects,
  type KeyedOperation,
  type ExampleObjects,
} from '../../support/every-operation.ts'
import { send, type RequestParts, type ProblemReply } from '../../support/send.ts'
import { waitUntil } from '../../support/wait.ts'

const { world, caller, key } = await openBusyWorld()

const ask = (id: KeyedOperation, asking: RequestParts): Promise<ProblemReply> => send(world.url, { id, key, asking })
const wait = (id: string, query: Readonly<Record<string, string>>): Promise<ProblemReply> =>
  ask('wait_for_sandbox', { params: { sandbox_id: id }, query })
const change = (id: KeyedOperation, sandbox: string): Promise<ProblemReply> =>
  ask(id, { params: { sandbox_id: sandbox } })
const waiting = (): number => world.control.deps.waitPermits.inUse

async function things(): Promise<ExampleObjects> {
  return await createExampleObjects(world, caller)
}

test('a wait ends as soon as the sandbox has one of the statuses, whatever changed it', async () => {
  const { idle } = await things()
  const running = wait(idle.id, { for: 'running', timeout: '60' })
  const byName = ask('wait_for_sandbox_by_name', { params: { name: idle.name }, query: { for: 'failed,running' } })
  await waitUntil(() => waiting() === 2)
  await change('start_sandbox', idle.id)
  for (const { status, text } of await Promise.all([running, byName])) {
    assert.equal(status, 200, text)
    assert.equal(JSON.parse(text).status, 'running')
    assertReplyMatchesContract('wait_for_sandbox', 200, JSON.parse(text))
  }
  const over = wait(idle.id, { timeout: '60' }) // without `for`, a wait is for the end of the run
  await waitUntil(() => waiting() === 1)
  await change('stop_sandbox', idle.id)
  assert.equal(JSON.parse((await over).text).status, 'stopped')
  assert.equal(waiting(), 0)
})

test('a wait for the present status ends at once, and one that times out replies with the sandbox as it is', async () => {
  const { idle, running } = await things()
  assert.equal(JSON.parse((await wait(running.id, { for: 'running' })).text).status, 'running')
  const late = await wait(idle.id, { for: 'running', timeout: '0' })
  assert.deepEqual([late.status, JSON.parse(late.text).status], [200, 'created'])
  const later = await wait(idle.id, { for: 'running', timeout: '1' })
  assert.deepEqual([later.status, JSON.parse(later.text).status], [200, 'created'])
  assert.equal(later.headers.get('etag'), late.headers.get('etag'))
})

test('a wait for a sandbox that is deleted ends with 404', async () => {
  const { idle } = await things()
  const deleted = wait(idle.id, { for: 'running', timeout: '60' })
  await waitUntil(() => waiting() === 1)
  await change('delete_sandbox', idle.id)
  const { status, code } = await deleted
  assert.deepEqual([status, code], [404, 'sandbox_not_found'])
})

test('a wait for one run ends with 409 when that run can no longer reach the status', async () => {
  const { running } = await things()
  const { run_id } = JSON.parse((await ask('get_sandbox', { params: { sandbox_id: running.id } })).text)
  const pinned = wait(running.id, { for: 'created', run: run_id, timeout: '60' })
  await waitUntil(() => waiting() === 1)
  await change('stop_sandbox', running.id)
  const ended = await pinned
  assert.deepEqual([ended.status, ended.code], [409, 'run_over'])
  assertReplyMatchesContract('wait_for_sandbox', 409, JSON.parse(ended.text))
  assert.equal(JSON.parse((await wait(running.id, { for: 'stopped', run: run_id })).text).status, 'stopped')
  await change('start_sandbox', running.id)
  const other = await wait(running.id, { for: 'running', run: run_id, timeout: '60' })
  assert.deepEqual([other.status, other.code], [409, 'run_over'])
  const { accepted } = JSON.parse(other.text).error.details
  assert.notEqual(accepted, run_id)
  assert.equal((await wait(running.id, { for: 'running', run: accepted, timeout: '60' })).status, 200)
})

test('a wait for an unknown status is refused', async () => {
  const { idle } = await things()
  for (const bad of ['', 'gone', 'running,', 'running, stopped'])
    assert.equal((await wait(idle.id, { for: bad })).status, 400, bad)
})

test('a client that disconnects frees its wait at once', async () => {
  const { idle } = await things()
  const { hostname, port } = new URL(world.url)
  const socket = connect(Number(port), hostname, () => socket.write(waitHead(idle.id)))
  await waitUntil(() => waiting() === 1)
  socket.destroy()
  await waitUntil(() => waiting() === 0)
})

test('a wait gets one complete reply, and its connection then serves the next pipelined request', async () => {
  const { idle } = await things()
  const { hostname, port } = new URL(world.url)
  let received = ''
  const socket = connect(Number(port), hostname, () => socket.write(waitHead(idle.id)))
  socket.setEncoding('utf8').on('data', (piece: string) => (received += piece))
  await waitUntil(() => waiting() === 1)
  socket.write('GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n')
  await change('start_sandbox', idle.id)
  await waitUntil(() => received.endsWith('{"status":"ok"}'))
  socket.destroy()
  const [lines = '', rest = ''] = received.split('\r\n\r\n')
  assert.match(lines, /^HTTP\/1.1 200 OK\r\n/)
  assert.match(lines, /x-request-id: /)
  const length = Number(/content-length: (\d+)/i.exec(lines)?.[1])
  const body = Buffer.from(rest).subarray(0, length).toString()
  assert.equal(JSON.parse(body).status, 'running')
})

function waitHead(id: string): string {
  return `GET /v1/sandboxes/${id}/wait?for=running&timeout=300 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${key}\r\n\r\n`
}

test('waits are answered when the server closes', async () => {
  const { idle } = await things()
  const cut = wait(idle.id, { for: 'running', timeout: '300' })
  await waitUntil(() => waiting() === 1)
  await world.goAway()
  const { status, text } = await cut
  assert.deepEqual([status, JSON.parse(text).status], [200, 'created'])
  assert.equal(waiting(), 0)
  await world.comeBack()
})

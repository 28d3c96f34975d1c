import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { suspendOrg } from '../../../src/control/orgs/orgs.ts'
import { listWorkers } from '../../../src/control/workers/fleet.ts'
import { registerWorker } from '../../../src/control/workers/worker-join.ts'
import { asOperator } from '../../../src/cli/commands/operator.ts'
import type { OperationId } from '../../../src/contract/operations.ts'
import { assertReplyMatchesContract } from '../../support/contract.ts'
import { addKey, addOrg } from '../../support/orgs.ts'
import { send } from '../../support/send.ts'
import { waitUntil } from '../../support/wait.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'

// What operators see and do over the API. The refusal of everybody else is tested in scopes.test.ts and sign-in/roles.test.ts.

let world: WorkerWorld
let operator: string
before(async () => {
  world = await makeWorkerWorld()
  operator = await addKey(world.control.deps, world.control.caller.org_id, { scopes: ['read'], isOperator: true })
})
after(() => world.close())

async function ask(id: OperationId, asking: object = {}, status = 200) {
  const reply = await send(world.url, { id, key: operator, asking })
  const body = JSON.parse(reply.text)
  assert.equal(reply.status, status, reply.text)
  assertReplyMatchesContract(id, status, body)
  return body
}

async function stateOf(name: string): Promise<string | undefined> {
  for await (const worker of listWorkers(world.control.deps)) if (worker.name === name) return worker.state
  return undefined
}

test('workers are listed in pages, and drained and resumed by name', async () => {
  const { deps } = world.control
  await registerWorker(deps, { name: 'page-1', credential: 'page-1' })
  await registerWorker(deps, { name: 'page-2', credential: 'page-2' })
  const names: string[] = []
  for (let cursor: string | null = null; ;) {
    const query: Record<string, string> = { limit: '1', ...(cursor === null ? {} : { cursor }) }
    const { data, next_cursor } = await ask('list_workers', { query })
    names.push(...data.map(({ name }: { name: string }) => name))
    cursor = next_cursor
    if (cursor === null) break
  }
  assert.deepEqual(names, ['w1', 'page-1', 'page-2'])

  const params = { worker_name: 'page-1' }
  await ask('drain_worker', { params, body: { deadline_secs: 60 } })
  const { data } = await ask('list_workers')
  const drained = data.find(({ name }: { name: string }) => name === 'page-1')
  assert.ok(drained.draining_since !== null)
  const waits = Date.parse(drained.drain_deadline_at) - deps.clock.now().getTime()
  assert.ok(waits > 0 && waits <= 60_000, drained.drain_deadline_at)
  await ask('drain_worker', { params, body: {} })
  assert.equal((await ask('list_workers')).data[1].drain_deadline_at, null)
  assert.equal(await stateOf('page-1'), 'draining')
  await ask('resume_worker', { params })
  assert.equal(await stateOf('page-1'), 'joined')
  const unknown = await ask('drain_worker', { params: { worker_name: 'nobody' }, body: {} }, 404)
  assert.match(unknown.error.message, /there is no worker 'nobody'/)
  const negative = await ask('drain_worker', { params, body: { deadline_secs: -1 } }, 400)
  assert.equal(negative.error.details.field, 'deadline_secs')
})

test('sandboxes that wait are listed in the order of the queue, with what is missing', async () => {
  assert.deepEqual(await ask('list_waiting_sandboxes'), { waiting: 0, data: [] })
  const first = await world.create()
  const second = await world.create()
  await waitUntil(async () => (await ask('list_waiting_sandboxes')).waiting === 2)
  const { data } = await ask('list_waiting_sandboxes', { query: { limit: '1' } })
  assert.deepEqual([data.length, data[0].id, data[0].name], [1, first.id, first.name])
  assert.ok(data[0].reason.length > 0 && data[0].org.length > 0)
  const all = await ask('list_waiting_sandboxes')
  assert.deepEqual(all.data.map(({ id }: { id: string }) => id), [first.id, second.id]) // prettier-ignore
})

test('organizations, plans and servers are listed', async () => {
  const { deps } = world.control
  const other = await addOrg(deps, 'listed-here')
  await suspendOrg(deps, asOperator({ id: other.org_id }), null)
  const { data } = await ask('list_orgs')
  const listed = data.find(({ id }: { id: string }) => id === other.org_id)
  assert.ok(listed.suspended_at !== null && listed.plan.length > 0)
  const { data: plans } = await ask('list_plans')
  assert.equal(
    plans.reduce((sum: number, { orgs }: { orgs: number }) => sum + orgs, 0),
    data.length,
  )
  assert.ok(Array.isArray((await ask('list_servers')).data))
})

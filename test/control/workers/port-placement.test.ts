import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { getSandbox } from '../../../src/control/sandboxes/read-sandboxes.ts'
import { moveSandbox } from '../../../src/control/sandboxes/transitions/transition.ts'
import { explainWaiting, makeReadFleet } from '../../../src/control/workers/explain-waiting.ts'
import { recordReport } from '../../../src/control/workers/record-report.ts'
import { registerWorker } from '../../../src/control/workers/worker-join.ts'
import type { SandboxId, WorkerId } from '../../../src/domain/ids.ts'
import { SYSTEM_ACTOR } from '../../../src/domain/orgs/caller.ts'
import type { PublishedPort } from '../../../src/domain/spec/published-ports.ts'
import { parsePublish } from '../../../src/domain/workers/publishing.ts'
import { makePlacePendingLoop } from '../../../src/loops/place-pending.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { reportOf } from '../../support/report.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'

// Placement of sandboxes that publish ports, over a real database.

const never = new AbortController().signal
const cause = { actor: SYSTEM_ACTOR, code: 'placement' } as const
let control: TestControl
let one: WorkerId
let two: WorkerId
before(async () => {
  control = await makeTestControl()
  one = await join('one', '127.0.0.1:8000-8999')
  two = await join('two', '127.0.0.1:8000-8999,0.0.0.0:9000')
})
after(() => control.close())

test('sandboxes with the same port get different workers, and a third waits until one ends', async () => {
  const first = await create([port(8_080)])
  const second = await create([port(8_080)])
  await pass()
  const workers = await Promise.all([first, second].map(workerOf))
  assert.deepEqual(new Set(workers), new Set([one, two]))
  await assert.rejects(create([port(8_080)]), /network\.ports\[0\]\.host_port is 8080, which another sandbox publishes/)

  const [third, fourth] = [await create([port(8_081)]), await create([port(8_081)])]
  const late = await create([port(8_081)])
  await pass()
  assert.equal(await workerOf(late), null)
  const waiting = await explainWaiting({ ...control.deps, readFleet: makeReadFleet(control.deps) }, late)
  assert.deepEqual(
    waiting?.missing.map(({ kind, name }) => [kind, name]),
    [['port', 'tcp port 8081']],
  )
  await end(third)
  await pass()
  assert.notEqual(await workerOf(late), null)
  for (const id of [first, second, fourth, late]) await end(id)
})

test('a worker gets only ports that it offers, and a request that fits only it gets it', async () => {
  const wild = await create([port(9_000, { host_bind: '0.0.0.0' })])
  await pass()
  assert.equal(await workerOf(wild), two)
  await assert.rejects(create([port(9_000)]), /9000, which another sandbox publishes/)
  await assert.rejects(create([port(9_001, { host_bind: '0.0.0.0' })]), /SANDYARD_PUBLISH\): 0\.0\.0\.0:9000-9000/)
  const datagrams = await create([port(9_000, { protocol: 'udp', host_bind: '0.0.0.0' })])
  await pass()
  assert.equal(await workerOf(datagrams), two, 'UDP has ports of its own')
  for (const id of [wild, datagrams]) await end(id)
})

test('a sandbox shows the ports that its worker picked, and they are taken while it runs', async () => {
  const id = await create([port(0), port(8_500)])
  await pass()
  const facts = { host_ports: '8400 8500' }
  await moveSandbox(control.deps, { sandbox_id: id, run_id: null, event: 'worker_running', cause, facts })
  const { spec_json } = await getSandbox(control.deps, control.caller, { id })
  const { network } = JSON.parse(spec_json) as { network: { ports: readonly PublishedPort[] } }
  assert.deepEqual(network.ports, [port(8_400), port(8_500)])
  const other = await create([port(8_400)])
  await pass()
  assert.notEqual(await workerOf(other), await workerOf(id))
  for (const ended of [id, other]) await end(ended)
})

function port(host_port: number, changes: Partial<PublishedPort> = {}): PublishedPort {
  return { host_bind: '127.0.0.1', host_port, guest_port: 80, protocol: 'tcp', ...changes }
}

let reports = 0
async function join(name: string, publish: string): Promise<WorkerId> {
  const worker_id = await registerWorker(control.deps, { name, credential: `credential-of-${name}` })
  const driver = {
    name: 'test',
    isolation: 'none',
    abilities: ['published_ports', 'network_policy'] as const,
    images: [],
    default_disk_mib: 40,
    publishes: parsePublish(publish) ?? [],
  }
  const capacity = { vcpus: 100, memory_mib: 100_000, disk_mib: null }
  await recordReport(control.deps, reportOf(worker_id, { seq: ++reports, capacity, driver }))
  return worker_id
}

async function create(ports: readonly PublishedPort[]): Promise<SandboxId> {
  const policy = { default_egress: 'deny', default_ingress: 'allow', rules: [] } as const
  const spec = { ...PLAIN_SPEC, network: { ...PLAIN_SPEC.network, policy, ports } }
  const input = {
    name: null,
    slug: null,
    registry: { mode: 'auto' },
    start: true,
    waitMs: null,
    signal: never,
  } as const
  return (await createSandbox(control.deps, control.caller, { ...input, spec })).id
}

async function workerOf(id: SandboxId): Promise<WorkerId | null> {
  const text = 'SELECT worker_id FROM runs WHERE sandbox_id = $1 AND ended_at IS NULL'
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ worker_id: WorkerId | null }>({ text, values: [id] }),
  )
  return rows[0]?.worker_id ?? null
}

/** One placement pass that reads the fleet anew. */
async function pass(): Promise<void> {
  await makePlacePendingLoop({ ...control.deps, settings: { ...control.deps.settings, placement: 'spread' } }).run(
    never,
  )
}

async function end(id: SandboxId): Promise<void> {
  await moveSandbox(control.deps, { sandbox_id: id, run_id: null, event: 'ended_well', cause })
}

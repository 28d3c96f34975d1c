import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { call, mustCall, type ModificationBody, type SandboxBody } from '../../support/api.ts'
import { capturedRequests } from '../../support/contract.ts'
import { addKey } from '../../support/orgs.ts'
import { onServer } from '../../support/postgres.ts'
import { waitUntil } from '../../support/wait.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'
import type { RunSecret } from '../../../src/domain/spec/secrets.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeSimulatedDriver } from '../../../src/worker/drivers/simulated.ts'
import { makeSimulatedWorld } from '../../../src/worker/drivers/simulated-world.ts'

// Secrets on their way from a request to the worker that runs the sandbox. The driver is simulated: it keeps what it gets.

let world: WorkerWorld
let api: { readonly url: string; readonly key: string }
const machine = makeSimulatedWorld()
let endWorker: () => Promise<void>

before(async () => {
  world = await makeWorkerWorld()
  endWorker = world.runWorker(makeSimulatedDriver({ clock: systemClock, world: machine }))
  const { deps, caller } = world.control
  await waitUntil(async () =>
    (await deps.workerAbilities(caller.org_id, { isFresh: true })).some((list) => list.includes('secrets')),
  )
  api = { url: world.url, key: await addKey(deps, caller.org_id) }
})
after(() => world.close())

const KEY = { env_var: 'KEY', value: 'one', allowed_hosts: [{ type: 'exact', value: 'api.example.com' }] }

function create(name: string, entries: readonly object[]): Promise<SandboxBody> {
  const body = { name, image: 'registry.example/box:1', network: { secrets: { entries } } }
  return mustCall(api, 'create_sandbox', { query: { start: 'true', wait_for: 'running' }, body })
}

/** What the worker got for the sandbox's open run, by variable. */
function onWorker(id: string): Readonly<Record<string, RunSecret>> {
  const run = [...machine.runs.values()].find(
    ({ desired, observed }) => desired.sandbox_id === id && observed.phase === 'running',
  )
  return Object.fromEntries((run?.desired.secrets ?? []).map((secret) => [secret.env_var, secret]))
}

test('the worker that runs a sandbox gets its secrets with their values, and a reply shows them without', async () => {
  const made = await create('runs', [KEY])
  assert.equal(made.status, 'running')
  assert.deepEqual(made.spec?.network.secrets, [
    {
      env_var: 'KEY',
      placeholder: '$MSB_KEY',
      allowed_hosts: KEY.allowed_hosts,
      injection: { headers: true, basic_auth: true, query_params: false, body: false },
      passthrough_hosts: [],
      require_tls_identity: true,
    },
  ])
  const { KEY: got } = onWorker(made.id)
  assert.deepEqual(
    [got?.value, got?.violation_action, got?.placeholder],
    ['one', { type: 'block_and_log' }, '$MSB_KEY'],
  )
})

test('a run whose values can not be unsealed does not start, and the reply says what to do', async () => {
  const body = { name: 'lost', image: 'registry.example/box:1', network: { secrets: { entries: [KEY] } } }
  const { id } = await mustCall(api, 'create_sandbox', { body })
  await world.control.asOwner(`UPDATE sandboxes SET secrets_sealed = '\\x01' WHERE id = $1`, [id])
  const started = await call(api, 'start_sandbox', { params: { sandbox_id: id }, query: { wait_for: 'running' } })
  assert.ok(!started.isRefusal)
  assert.equal(started.body.status, 'failed')
  assert.match(started.body.last_failure_message ?? '', /the values of the secrets can not be read/)
})

test('a deletion of a sandbox deletes the values', async () => {
  const { id } = await create('deleted', [KEY])
  await mustCall(api, 'delete_sandbox', { params: { sandbox_id: id } })
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<{ sealed: Buffer | null }>({
      text: 'SELECT secrets_sealed AS sealed FROM sandboxes WHERE id = $1',
      values: [id],
    }),
  )
  assert.deepEqual(rows, [{ sealed: null }])
})

const modify = (id: string, body: object) => call(api, 'modify_sandbox', { params: { sandbox_id: id }, body })
const plan = (id: string, body: object) => call(api, 'plan_modification', { params: { sandbox_id: id }, body })
const briefly = ({ changes }: ModificationBody): string[] =>
  changes.map(
    (change) => `${change.kind === 'secret' ? change.name : change.field} ${change.change} ${change.disposition}`,
  )

test('a new value and new hosts reach the worker of a running sandbox, and may be sent again', async () => {
  const { id } = await create('rotated', [KEY])
  const secrets = [{ name: 'KEY', value: 'two', allowed_hosts: [{ type: 'any' }] }]
  const planned = await plan(id, { secrets: [{ ...secrets[0], value: undefined, material: { type: 'provided' } }] })
  assert.ok(!planned.isRefusal)
  assert.deepEqual(
    [planned.body.applied, briefly(planned.body)],
    [false, ['KEY rotated live', 'KEY hosts_updated live']],
  )
  assert.equal(onWorker(id)['KEY']?.value, 'one')
  for (const _ of ['first', 'repeated']) {
    const { status, body } = await modify(id, { policy: 'no_restart', secrets })
    assert.deepEqual([status, 'applied' in body && body.applied], [200, true])
  }
  await waitUntil(() => onWorker(id)['KEY']?.value === 'two')
  assert.deepEqual(onWorker(id)['KEY']?.allowed_hosts, [{ type: 'any' }])
  const shown = await mustCall(api, 'get_sandbox', { params: { sandbox_id: id } })
  assert.deepEqual(shown.spec?.network.secrets?.[0]?.allowed_hosts, [{ type: 'any' }])
  const { data } = await mustCall(api, 'list_events', { query: { sandbox_id: id } })
  const changes = data.filter(({ event_type }) => event_type === 'sandbox_secrets_changed')
  assert.deepEqual(
    changes.map(({ payload }) => Object(payload).changes),
    [['KEY rotated', 'KEY hosts_updated']],
  )
})

test('a removed secret is taken from the worker, and an unknown name is no change', async () => {
  const { id } = await create('removed', [KEY])
  const generation = await readGeneration()
  const removal = await modify(id, { secrets_remove: ['KEY', 'UNKNOWN'] })
  assert.ok(!removal.isRefusal)
  assert.deepEqual(briefly(removal.body), ['KEY removed live'])
  await waitUntil(() => onWorker(id)['KEY'] === undefined)
  assert.ok((await readGeneration()) > generation, 'a lost notification would cost only time')
  const again = await modify(id, { secrets_remove: ['KEY'] })
  assert.ok(!again.isRefusal)
  assert.deepEqual(briefly(again.body), [])
})

async function readGeneration(): Promise<number> {
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<{ generation: string }>({
      text: 'SELECT generation FROM worker_generations WHERE worker_id = $1',
      values: [world.worker_id],
    }),
  )
  return Number(rows[0]?.generation ?? 0)
}

test('what a running sandbox can not get is refused with the way out, and nothing is changed', async () => {
  const { id } = await create('stays', [KEY])
  const before = await mustCall(api, 'get_sandbox', { params: { sandbox_id: id } })
  const NEW = { name: 'NEW', value: 'x', allowed_hosts: [{ type: 'any' }] }
  const cases: readonly (readonly [object, string, RegExp])[] = [
    [{ secrets: [NEW] }, 'modification_refused', /NEW added: .*; accepted: policy next_start/],
    [{ policy: 'restart', secrets: [NEW] }, 'modification_refused', /NEW added/],
    [
      { secrets: [{ name: 'KEY', value: 'x', placeholder: '$OTHER' }] },
      'modification_refused',
      /KEY placeholder_updated/,
    ],
    [
      { secrets: [{ name: 'KEY', substitution: { query: true } }] },
      'modification_refused',
      /secret\.KEY\.policy updated/,
    ],
    [{ secrets: [{ name: 'NEW', allowed_hosts: [{ type: 'any' }] }] }, 'modification_refused', /NEW needs a value/],
    [{ secrets: [{ name: 'NEW', value: 'x' }] }, 'modification_refused', /NEW needs at least one allowed host/],
    [{ secrets: [{ ...NEW, placeholder: '$MSB_KEY' }] }, 'modification_refused', /have the same placeholder/],
    [
      { secrets: [{ name: 'KEY', value: 'x' }], secrets_remove: ['KEY'] },
      'modification_refused',
      /both configured and removed/,
    ],
    [
      {
        secrets: [
          { name: 'KEY', value: 'x' },
          { name: 'KEY', value: 'y' },
        ],
      },
      'modification_refused',
      /configured twice/,
    ],
    [{ env: [{ key: 'A', value: 'b' }] }, 'modification_unsupported', /env of a sandbox can not change/],
    [{ memory_mib: 1024 }, 'modification_unsupported', /memory_mib/],
    [{ secrets: [{ name: 'KEY', allow_hosts: ['a'] }] }, 'invalid_request', /secrets\[0\]\.allow_hosts/],
    [{ secrets: [{ name: 'KEY', substitution: { header: true } }] }, 'invalid_request', /substitution\.header /],
    [{ secrets: [{ name: 'KEY', allowed_hosts: [] }] }, 'invalid_request', /secrets\[0\]\.allowed_hosts/],
    [{ secrets: [{ name: 'A=B', value: 'x' }] }, 'invalid_request', /secrets\[0\]\.name/],
    [{ secrets: [{ name: 'KEY', value: 'x\n' }] }, 'invalid_sandbox_config', /secrets\[0\]\.value/],
  ]
  for (const [body, code, message] of cases) {
    const answer = await modify(id, body)
    assert.ok(answer.isRefusal, JSON.stringify(body))
    assert.deepEqual([answer.body.error.code, message.test(answer.body.error.message)], [code, true], answer.text)
  }
  assert.deepEqual(await mustCall(api, 'get_sandbox', { params: { sandbox_id: id } }), before)
  assert.equal(onWorker(id)['KEY']?.value, 'one')
})

test('with next_start, what runs keeps its secrets, and the next run has the new ones', async () => {
  const { id } = await create('later', [KEY, { ...KEY, env_var: 'OTHER' }])
  const secrets = [
    { name: 'KEY', value: 'two' },
    { name: 'NEW', value: 'three', allowed_hosts: [{ type: 'any' }] },
  ]
  const changed = await modify(id, { policy: 'next_start', secrets })
  assert.ok(!changed.isRefusal)
  assert.deepEqual(briefly(changed.body), ['KEY rotated next_start', 'NEW added next_start'])
  const pending = await modify(id, { secrets: [{ name: 'KEY', value: 'four' }] })
  assert.match(pending.text, /an earlier change of this secret waits for the next start/)
  assert.ok(!(await modify(id, { secrets: [{ name: 'OTHER', value: 'now' }] })).isRefusal)
  await waitUntil(() => onWorker(id)['OTHER']?.value === 'now')
  assert.deepEqual([onWorker(id)['KEY']?.value, onWorker(id)['NEW']], ['one', undefined])
  await mustCall(api, 'stop_sandbox', { params: { sandbox_id: id } })
  await waitUntil(async () => (await mustCall(api, 'get_sandbox', { params: { sandbox_id: id } })).status === 'stopped')
  await mustCall(api, 'start_sandbox', { params: { sandbox_id: id }, query: { wait_for: 'running' } })
  const values = Object.fromEntries(Object.entries(onWorker(id)).map(([name, { value }]) => [name, value]))
  assert.deepEqual(values, { KEY: 'two', OTHER: 'now', NEW: 'three' })
})

test('a stopped sandbox gets its first secret at its next start, and values that can not be unsealed are given again', async () => {
  const { id } = await mustCall(api, 'create_sandbox', { body: { name: 'first', image: 'registry.example/box:1' } })
  const given = await modify(id, { secrets: [{ name: 'KEY', value: 'one', allowed_hosts: [{ type: 'any' }] }] })
  assert.ok(!given.isRefusal)
  assert.deepEqual(briefly(given.body), ['KEY added next_start'])
  await world.control.asOwner(`UPDATE sandboxes SET secrets_sealed = '\\x01' WHERE id = $1`, [id])
  assert.match(
    (await modify(id, { secrets: [{ name: 'KEY', allowed_hosts: KEY.allowed_hosts }] })).text,
    /KEY needs a value/,
  )
  assert.ok(!(await modify(id, { secrets: [{ name: 'KEY', value: 'two' }] })).isRefusal)
  await mustCall(api, 'start_sandbox', { params: { sandbox_id: id }, query: { wait_for: 'running' } })
  assert.equal(onWorker(id)['KEY']?.value, 'two')
})

test('the requests of the client 0.7.13 are understood', async () => {
  const { id } = await create('recorded', [
    { ...KEY, env_var: 'API_KEY' },
    { ...KEY, env_var: 'OLD_KEY' },
  ])
  for (const { name, method, body } of capturedRequests().filter(({ url }) =>
    /\{id\}(?:\/modifications\/plan)?$/.test(url),
  )) {
    const answer = method === 'PUT' ? await modify(id, body) : await plan(id, body)
    assert.ok([200, 409].includes(answer.status), `${name}: ${answer.text}`)
    if (method === 'POST') assert.equal(answer.status, 200, `${name}: ${answer.text}`)
  }
})

test('a worker that starts again gets the secrets again, and a driver that fails to take them gets them until it does', async () => {
  const { id } = await create('again', [KEY])
  await endWorker()
  for (const [run, { desired, ...rest }] of machine.runs)
    machine.runs.set(run, { desired: { ...desired, secrets: null }, ...rest })
  const driver = makeSimulatedDriver({ clock: systemClock, world: machine })
  const mine = [...machine.runs].find(([, { desired }]) => desired.sandbox_id === id)?.[0]
  let tries = 0
  const setSecrets: typeof driver.setSecrets = async (run, secrets) => {
    if (run === mine && ++tries === 1) throw new Error('the proxy is away')
    await driver.setSecrets?.(run, secrets)
  }
  endWorker = world.runWorker({ ...driver, setSecrets })
  await waitUntil(() => onWorker(id)['KEY']?.value === 'one')
  assert.ok(tries > 1)
})

test('a change that waits too long for another one, or whose database fails, is refused by a code of its own, changes nothing and may be sent again', async () => {
  const { id } = await create('contended', [KEY])
  const change = { secrets: [{ name: 'KEY', value: 'two' }] }
  await onServer(world.control.databaseUrl, async (somebody) => {
    await somebody.query(`SELECT set_config('sandyard.org', '*', false)`)
    await somebody.query('BEGIN')
    await somebody.query('SELECT 1 FROM sandboxes WHERE id = $1 FOR UPDATE', [id])
    const late = await modify(id, change)
    assert.deepEqual([late.status, /modification_in_progress/.test(late.text)], [409, true], late.text)
    const cut = modify(id, change)
    await waitUntil(async () => {
      const killed = await somebody.query(
        'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))',
      )
      return killed.rowCount === 1
    })
    const { status, text } = await cut
    assert.deepEqual([status, /modification_failed/.test(text), /safe to send it again/.test(text)], [503, true, true])
    await somebody.query('ROLLBACK')
  })
  assert.equal(onWorker(id)['KEY']?.value, 'one')
  assert.ok(!(await modify(id, change)).isRefusal)
  await waitUntil(() => onWorker(id)['KEY']?.value === 'two')
})

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { call, mustCall, type SandboxBody } from '../../support/api.ts'
import { addKey } from '../../support/orgs.ts'
import { waitUntil } from '../../support/wait.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'
import type { RunSecret } from '../../../src/domain/spec/secrets.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeSimulatedDriver, makeSimulatedWorld } from '../../../src/worker/drivers/simulated.ts'

// Secrets on their way from a request to the worker that runs the sandbox. The driver is simulated: it keeps what it gets.

let world: WorkerWorld
let api: { readonly url: string; readonly key: string }
const machine = makeSimulatedWorld()

before(async () => {
  world = await makeWorkerWorld()
  world.runWorker(makeSimulatedDriver({ clock: systemClock, world: machine }))
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

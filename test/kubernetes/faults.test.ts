import assert from 'node:assert/strict'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import type { RunId } from '../../src/domain/ids.ts'
import { makeDesiredRun } from '../support/desired-run.ts'
import { enginePart } from '../support/engine-parts.ts'
import { openKubernetesDriver, type TestDriver } from '../support/kubernetes-driver.ts'
import { kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { HELPER_IMAGE, makeRealNamespace, type RealNamespace } from '../support/real-kubernetes.ts'
import { waitUntil } from '../support/wait.ts'
import { POD_SPEC } from '../worker/drivers/kubernetes-conformance.ts'

// Faults of a real cluster's own processes. test/worker/drivers/kubernetes/faults.test.ts has those that a fake injects.

const skip = whyNoKubernetes()
const LIMIT = { skip, timeout: 300_000 }
const WAIT_MS = 120_000
const NEVER = new AbortController().signal
const part = (name: string) => enginePart(process.env['SANDYARD_TEST_KUBERNETES'] ?? '', name)
let namespace: RealNamespace
let driver: TestDriver

before(async () => {
  if (skip !== false) return
  namespace = await makeRealNamespace('faults')
  driver = await openKubernetesDriver({
    dir: join(namespace.folder, 'driver'),
    access: namespace.access,
    helperImage: HELPER_IMAGE,
  })
})
after(async () => {
  if (skip !== false) return
  await removeAll()
  await driver.close()
  await namespace.remove()
})

async function removeAll(): Promise<void> {
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
}

async function phaseOf(run: RunId): Promise<string | undefined> {
  return (await driver.list()).find(({ run_id }) => run_id === run)?.phase
}

async function startRun(): Promise<RunId> {
  const desired = makeDesiredRun(POD_SPEC)
  await driver.start(desired, NEVER)
  return desired.run_id
}

async function echo(run: RunId): Promise<string> {
  const guest = await driver.guestOf(run)
  const plain = { env: [], cwd: null, user: null, tty: null, rlimits: [] }
  return await text((await guest.exec({ cmd: 'echo', args: ['fine'], ...plain })).stdout)
}

/** The API server answers, and so does what it asks for each request. */
async function isServing(): Promise<boolean> {
  return await kubectl('get', '--raw', '/readyz', '--request-timeout=5s').then(
    (answer) => answer === 'ok',
    () => false,
  )
}

async function isNodeReady(): Promise<boolean> {
  const path = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
  return (await kubectl('get', 'node', 'node', '-o', path)) === 'True'
}

test('runs go on while the API server is killed, and a start that it interrupts makes one Pod', LIMIT, async () => {
  const lasting = await startRun()
  const desired = makeDesiredRun(POD_SPEC)
  const starting = driver.start(desired, NEVER)
  part('apiserver').kill()
  await waitUntil(async () => !(await isServing()))
  assert.equal(await phaseOf(lasting), 'running')
  part('apiserver').start()
  await waitUntil(isServing, WAIT_MS)
  await starting
  await waitUntil(async () => (await echo(lasting).catch(() => '')) === 'fine\n', WAIT_MS)
  assert.equal(await echo(desired.run_id), 'fine\n')
  assert.equal((await namespace.pods()).length, 2)
  await removeAll()
  assert.deepEqual(await namespace.pods(), [])
})

test('a start waits for a store that does not answer, and makes one Pod', LIMIT, async () => {
  const lasting = await startRun()
  part('etcd').freeze()
  const starting = startRun()
  try {
    await waitUntil(async () => !(await isServing()), WAIT_MS)
    assert.equal(await phaseOf(lasting), 'running')
  } finally {
    part('etcd').thaw()
  }
  const started = await starting
  assert.equal(await echo(started), 'fine\n')
  assert.equal((await namespace.pods()).length, 2)
  await waitUntil(isServing, WAIT_MS)
  await removeAll()
})

test('a frozen kubelet ends no run, also when its node is not ready, and only delays a stop', LIMIT, async () => {
  const [one, two] = [await startRun(), await startRun()]
  part('kubelet').freeze()
  let stopping
  try {
    stopping = driver.stop(one, 1)
    await waitUntil(async () => !(await isNodeReady()), WAIT_MS) // after the cluster's own limit of 50 s
    assert.equal(await phaseOf(one), 'stopping')
    assert.equal(await phaseOf(two), 'running')
  } finally {
    part('kubelet').thaw()
  }
  await stopping
  await waitUntil(async () => (await phaseOf(one)) === 'ended', WAIT_MS)
  await waitUntil(isNodeReady, WAIT_MS)
  assert.equal(await phaseOf(two), 'running')
  assert.equal(await echo(two), 'fine\n')
  await removeAll()
})

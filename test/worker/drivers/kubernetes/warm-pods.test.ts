import assert from 'node:assert/strict'
import { cp } from 'node:fs/promises'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { asId, type OrgId, type RunId } from '../../../../src/domain/ids.ts'
import { systemClock } from '../../../../src/lib/clock.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import { claimPod } from '../../../../src/worker/drivers/kubernetes/warm/claim-pod.ts'
import { makeApiClient } from '../../../../src/worker/kubernetes/api-client.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { waitUntil } from '../../../support/wait.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

const NEVER = new AbortController().signal
const RUN = 'sandyard.dev/run'
let fake: FakeKubernetes

before(async () => {
  fake = await makeFakeKubernetes()
})
after(() => fake.remove())

async function open(name: string): Promise<TestDriver> {
  return await fake.open({ dir: join(fake.folder, name), warm: 2 })
}

/** Opens a worker that has a warm Pod, because a sandbox of its shape has run. */
async function openWarm(name: string): Promise<TestDriver> {
  const driver = await open(name)
  const first = makeDesiredRun(POD_SPEC)
  await driver.start(first, NEVER)
  await driver.remove(first.run_id)
  await hasWarm(driver)
  return driver
}

const readyCount = (driver: TestDriver): number | undefined => driver.pools?.()[0]?.ready
const hasWarm = (driver: TestDriver): Promise<unknown> => waitUntil(() => readyCount(driver) === 1)

/** The names of the Pods that are a run's. */
function podsOf(run: RunId): readonly string[] {
  return [...fake.cluster.pods.values()]
    .filter(({ metadata }) => metadata.labels?.[RUN] === run)
    .map(({ metadata }) => metadata.name)
}

function warmNames(): readonly string[] {
  return [...fake.cluster.pods.values()]
    .filter(({ metadata }) => metadata.labels?.[RUN] === undefined)
    .map(({ metadata }) => metadata.name)
}

test('a start takes a Pod that is ready, commands run in it, and its end leaves nothing', async () => {
  const driver = await openWarm('takes')
  const [warm] = warmNames()
  const desired = makeDesiredRun(POD_SPEC)
  await driver.start(desired, NEVER)
  assert.deepEqual(podsOf(desired.run_id), [warm])
  assert.equal(driver.warmStarts?.().hit, 1)
  const guest = await driver.guestOf(desired.run_id)
  const echo = await guest.exec({ cmd: 'echo', args: ['fine'], env: [], cwd: null, user: null, tty: null, rlimits: [] })
  assert.equal(await text(echo.stdout), 'fine\n')
  await driver.remove(desired.run_id)
  assert.deepEqual(podsOf(desired.run_id), [])
  await driver.close()
  assert.equal(fake.cluster.pods.size, 0, 'the close removes warm Pods')
})

test('a run whose Pod would be another one gets a plain start', async () => {
  const driver = await openWarm('differs')
  const others = [
    makeDesiredRun({ ...POD_SPEC, env: [{ key: 'A', value: 'b' }] }),
    makeDesiredRun({ ...POD_SPEC, image: 'localhost/other:1' }),
    makeDesiredRun({ ...POD_SPEC, pull_policy: 'always' }),
    { ...makeDesiredRun(POD_SPEC), org_id: asId<OrgId>('another') },
  ]
  for (const desired of others) {
    await driver.start(desired, NEVER)
    assert.deepEqual(podsOf(desired.run_id), [`sandyard-${desired.run_id}`])
    await driver.remove(desired.run_id)
  }
  assert.equal(driver.warmStarts?.().hit, 0)
  await driver.close()
})

test('a claim whose answer is lost is one claim', async () => {
  const driver = await openWarm('lost')
  const [warm] = warmNames()
  const desired = makeDesiredRun(POD_SPEC)
  fake.cluster.faults.loseUpdates = 1
  await driver.start(desired, NEVER)
  assert.deepEqual(podsOf(desired.run_id), [warm])
  await driver.remove(desired.run_id)
  await driver.close()
})

test('of runs that claim one Pod at once, one has it, also while its kubelet writes', async () => {
  const driver = await openWarm('race')
  const client = makeApiClient(fake.cluster.access)
  const [name = ''] = warmNames()
  const uid = fake.cluster.pods.get(name)?.metadata.uid ?? ''
  const runs = Array.from({ length: 8 }, () => makeDesiredRun(POD_SPEC))
  const claims = runs.map(async (run, n) => {
    fake.cluster.setStatus(name, { qosClass: String(n) })
    const target = { namespace: 'sandboxes', name }
    return await claimPod({ client, clock: systemClock, log: makeLog('silent') }, { target, uid, run, signal: NEVER })
  })
  const results = await Promise.all(claims)
  assert.deepEqual(results.toSorted(), ['claimed', ...Array.from({ length: 7 }, () => 'gone')])
  const winner = runs[results.indexOf('claimed')]
  assert.equal(fake.cluster.pods.get(name)?.metadata.labels?.[RUN], winner?.run_id)
  client.close()
  await driver.close()
})

test('a worker that was killed between its record and the claim, or between the claim and the record of the start, leaves no Pod', async () => {
  for (const isClaimed of [false, true]) {
    const name = `killed-${String(isClaimed)}`
    const first = await openWarm(name)
    const desired = makeDesiredRun(POD_SPEC)
    fake.cluster.faults.refuse.push({ method: 'PUT', status: 503 })
    const starting = first.start(desired, NEVER).catch(() => undefined)
    await waitUntil(() => !fake.cluster.faults.refuse.some(({ method }) => method === 'PUT'))
    await cp(join(fake.folder, name), join(fake.folder, `${name}-next`), { recursive: true })
    if (isClaimed) await waitUntil(() => podsOf(desired.run_id).length === 1)
    const second = await open(`${name}-next`) // what the next process finds
    assert.deepEqual(await second.list(), [])
    await waitUntil(() => podsOf(desired.run_id).length === 0 && warmNames().length === 0)
    await starting
    await first.close()
    await second.close()
    assert.equal(fake.cluster.pods.size, 0)
  }
})

test('a start that finds another Pod of its run fails, and its own Pod goes', async () => {
  const driver = await open('second')
  const client = makeApiClient(fake.cluster.access)
  const desired = makeDesiredRun(POD_SPEC)
  await client.request('POST', '/api/v1/namespaces/sandboxes/pods', {
    metadata: { name: 'elsewhere', labels: { [RUN]: desired.run_id } },
    spec: { containers: [{ name: 'sandbox', image: 'localhost/box:1', command: ['sleep', '1000'] }] },
  })
  await assert.rejects(driver.start(desired, NEVER), /another Pod, elsewhere/)
  assert.deepEqual(podsOf(desired.run_id), ['elsewhere'])
  fake.cluster.drop('elsewhere')
  client.close()
  await driver.close()
})

test('warm Pods give way to a start that the quota has no space for', async () => {
  const driver = await openWarm('quota')
  const warm = warmNames()
  const desired = makeDesiredRun({ ...POD_SPEC, env: [{ key: 'A', value: 'b' }] })
  fake.cluster.faults.refuse.push({ method: 'POST', status: 403 })
  await driver.start(desired, NEVER)
  assert.ok(warm.every((name) => !fake.cluster.pods.has(name)))
  await driver.remove(desired.run_id)
  await driver.close()
})

test('a worker that may not write to Pods starts plainly, and keeps none ready', async () => {
  const driver = await openWarm('refused')
  const desired = makeDesiredRun(POD_SPEC)
  fake.cluster.faults.refuse.push({ method: 'PUT', status: 403 })
  await driver.start(desired, NEVER)
  assert.deepEqual(podsOf(desired.run_id), [`sandyard-${desired.run_id}`])
  assert.deepEqual(warmNames(), [])
  await driver.remove(desired.run_id)
  await driver.close()
})

import assert from 'node:assert/strict'
import { cp } from 'node:fs/promises'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import type { RunOutcome } from '../../../../src/contract/workers/worker-protocol.ts'
import type { RunId } from '../../../../src/domain/ids.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { makeTestLogs, readAll, textOf } from '../../../support/logs.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { waitUntil } from '../../../support/wait.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

const NEVER = new AbortController().signal
const { runtime } = DEFAULT_SPEC_FOR_TESTS
let fake: FakeKubernetes
let driver: TestDriver

before(async () => {
  fake = await makeFakeKubernetes()
  driver = await fake.open()
})
after(async () => {
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
  await driver.close()
  await fake.remove()
})

const podOf = (run: RunId): string => `sandyard-${run}`

async function ended(run: RunId, from = driver): Promise<RunOutcome | undefined> {
  const find = async () => (await from.list()).find(({ run_id }) => run_id === run)
  await waitUntil(async () => (await find())?.phase === 'ended')
  return (await find())?.outcome
}

async function phaseOf(run: RunId): Promise<string | undefined> {
  return (await driver.list()).find(({ run_id }) => run_id === run)?.phase
}

test('a create whose answer is lost makes one Pod, and the start succeeds', async () => {
  const desired = makeDesiredRun(POD_SPEC)
  fake.cluster.faults.loseCreates = 2
  await driver.start(desired, NEVER)
  assert.equal(await phaseOf(desired.run_id), 'running')
  assert.equal(fake.cluster.pods.size, 1)
  await driver.remove(desired.run_id)
})

test('refusals of the API server that pass only delay a start and an end', async () => {
  const desired = makeDesiredRun(POD_SPEC)
  fake.cluster.faults.refuse.push({ method: 'POST', status: 500 }, { method: 'POST', status: 429 })
  await driver.start(desired, NEVER)
  fake.cluster.faults.refuse.push({ method: 'DELETE', status: 503 }, { method: 'DELETE', status: 500 })
  await driver.remove(desired.run_id)
  assert.equal(fake.cluster.pods.size, 0)
})

test('a Pod that the cluster refuses fails the start in words', async () => {
  const desired = makeDesiredRun(POD_SPEC)
  fake.cluster.faults.refuse.push({ method: 'POST', status: 403 })
  await assert.rejects(driver.start(desired, NEVER), (error) => error instanceof StartError && error.reason === 'host')
  await driver.remove(desired.run_id)
})

test('a frozen node delays the end of a run, and the run is not reported as ended', async () => {
  const desired = makeDesiredRun(POD_SPEC)
  await driver.start(desired, NEVER)
  fake.cluster.faults.isFrozen = true
  const stopping = driver.stop(desired.run_id, 0)
  await waitUntil(() => fake.cluster.pods.get(podOf(desired.run_id))?.metadata.deletionTimestamp !== undefined)
  for (let n = 0; n < 20; n += 1) assert.equal(await phaseOf(desired.run_id), 'stopping')
  fake.cluster.faults.isFrozen = false
  fake.cluster.drop(podOf(desired.run_id))
  await stopping
  assert.deepEqual(await ended(desired.run_id), { kind: 'stopped' })
  await driver.remove(desired.run_id)
})

test('runs go on while the API server is away, and their ends are seen afterwards', async () => {
  const [one, two] = [makeDesiredRun(POD_SPEC), makeDesiredRun(POD_SPEC)]
  await driver.start(one, NEVER)
  await driver.start(two, NEVER)
  fake.cluster.cut({ forgets: true })
  assert.equal(await phaseOf(one.run_id), 'running')
  fake.cluster.setStatus(podOf(one.run_id), {
    phase: 'Failed',
    containerStatuses: [{ name: 'sandbox', state: { terminated: { exitCode: 137, reason: 'OOMKilled' } } }],
  })
  assert.deepEqual(await ended(one.run_id), { kind: 'out_of_memory' })
  assert.equal(await phaseOf(two.run_id), 'running')
  await driver.remove(one.run_id)
  await driver.remove(two.run_id)
})

test('a Pod that is evicted or deleted by somebody else is lost, with the reason', async () => {
  const [evicted, deleted] = [makeDesiredRun(POD_SPEC), makeDesiredRun(POD_SPEC)]
  await driver.start(evicted, NEVER)
  await driver.start(deleted, NEVER)
  fake.cluster.setStatus(podOf(evicted.run_id), {
    phase: 'Failed',
    reason: 'Evicted',
    message: 'the node was low on disk',
  })
  const outcome = await ended(evicted.run_id)
  assert.ok(outcome?.kind === 'lost' && /Evicted the node was low on disk/.test(outcome.message))
  fake.cluster.drop(podOf(deleted.run_id))
  assert.equal((await ended(deleted.run_id))?.kind, 'lost')
  await driver.remove(evicted.run_id)
  await driver.remove(deleted.run_id)
})

test('commands go on after the connection to the sandbox was lost', async () => {
  const desired = makeDesiredRun(POD_SPEC)
  await driver.start(desired, NEVER)
  const guest = await driver.guestOf(desired.run_id)
  const echo = async (): Promise<string> => {
    const process = await guest.exec({
      cmd: 'echo',
      args: ['fine'],
      env: [],
      cwd: null,
      user: null,
      tty: null,
      rlimits: [],
    })
    return await text(process.stdout)
  }
  assert.equal(await echo(), 'fine\n')
  fake.cluster.cut()
  await waitUntil(async () => (await echo().catch(() => '')) === 'fine\n')
  await driver.remove(desired.run_id)
})

test('a worker that was killed during a start leaves no Pod', async () => {
  const dir = `${fake.folder}/killed`
  const first = await fake.open({ dir })
  const desired = makeDesiredRun({
    ...POD_SPEC,
    resources: { ...DEFAULT_SPEC_FOR_TESTS.resources, memory_mib: 10_000_000 },
  })
  const starting = first.start(desired, NEVER).catch(() => undefined)
  await waitUntil(() => fake.cluster.pods.has(podOf(desired.run_id)))
  await cp(dir, `${dir}-next`, { recursive: true }) // what the next process of a worker finds that was killed now
  const second = await fake.open({ dir: `${dir}-next` })
  await waitUntil(() => !fake.cluster.pods.has(podOf(desired.run_id)))
  assert.deepEqual(await second.list(), [])
  await starting
  await first.close()
  await second.close()
})

test('a Pod without a record is deleted, and one of another worker is not', async () => {
  const desired = makeDesiredRun(POD_SPEC)
  await driver.start(desired, NEVER)
  const other = await fake.open({ dir: `${fake.folder}/other` })
  await assert.rejects(other.start(desired, NEVER), StartError)
  await other.remove(desired.run_id)
  assert.equal(await phaseOf(desired.run_id), 'running')
  const stray = makeDesiredRun(POD_SPEC)
  await other.start(stray, NEVER)
  await other.close()
  const again = await fake.open({ dir: `${fake.folder}/other` })
  assert.equal((await again.list())[0]?.phase, 'running')
  await again.remove(stray.run_id)
  await again.close()
  await driver.remove(desired.run_id)
})

test('a value that a Pod can not have is refused in words', async () => {
  const refused = async (changes: Partial<typeof runtime>, pattern: RegExp): Promise<void> => {
    const desired = makeDesiredRun({ ...POD_SPEC, runtime: { ...runtime, ...changes } })
    await assert.rejects(
      driver.start(desired, NEVER),
      (error) => error instanceof StartError && pattern.test(error.message),
    )
    await driver.remove(desired.run_id)
  }
  await refused({ user: 'root' }, /runtime.user 'root'/)
  await refused({ user: '0' }, /runtime.user '0'/)
  await refused({ hostname: 'a.b' }, /runtime.hostname 'a.b'/)
  await refused({ cmd: ['x'], scripts: { a: 'b' } }, /runtime.entrypoint/)
  const kept = makeDesiredRun({ ...POD_SPEC, labels: {} })
  await assert.rejects(driver.start(kept, NEVER), /keeps no files of a stopped sandbox/)
  await driver.remove(kept.run_id)
})

test('a Pod that does not start in time fails the start, and says what it waits for', async () => {
  const other = await fake.open({ dir: `${fake.folder}/late`, startLimitMs: 300 })
  const desired = makeDesiredRun({
    ...POD_SPEC,
    resources: { ...DEFAULT_SPEC_FOR_TESTS.resources, memory_mib: 10_000_000 },
  })
  await assert.rejects(
    other.start(desired, NEVER),
    (error) => error instanceof StartError && /in time/.test(error.message),
  )
  await other.remove(desired.run_id)
  assert.equal(fake.cluster.pods.size, 0)
  await other.close()
})

test('a Pod whose toolbox could not be filled fails the start, and not because of its configuration', async () => {
  const desired = makeDesiredRun({
    ...POD_SPEC,
    resources: { ...DEFAULT_SPEC_FOR_TESTS.resources, memory_mib: 10_000_000 },
  })
  const starting = assert.rejects(
    driver.start(desired, NEVER),
    (error) => error instanceof StartError && error.reason === 'host' && /toolbox/.test(error.message),
  )
  await waitUntil(() => fake.cluster.pods.has(podOf(desired.run_id)))
  const terminated = (exitCode: number, reason: string) => ({ state: { terminated: { exitCode, reason } } })
  const containerStatuses = [
    { name: 'fill', ...terminated(137, 'Error') },
    { name: 'sandbox', ...terminated(128, 'StartError') },
  ]
  fake.cluster.setStatus(podOf(desired.run_id), { phase: 'Failed', containerStatuses })
  await starting
  await driver.remove(desired.run_id)
  assert.equal(fake.cluster.pods.size, 0)
})

test('the output of a workload is in its log once, through a restart of the worker', { timeout: 60_000 }, async () => {
  const { logs, remove } = await makeTestLogs()
  const dir = `${fake.folder}/logs`
  const first = await fake.open({ dir, logs })
  const script = 'n=0; while [ $n -lt 30 ]; do n=$((n+1)); echo "line $n"; sleep 0.1; done; exit 3'
  const desired = makeDesiredRun({ ...POD_SPEC, runtime: { ...runtime, entrypoint: [], cmd: ['sh', '-c', script] } })
  await first.start(desired, NEVER)
  await waitUntil(async () => textOf(await readAll(logs, desired.sandbox_id)).includes('line 8\n'))
  await first.close()
  const second = await fake.open({ dir, logs })
  assert.deepEqual(await ended(desired.run_id, second), { kind: 'exited', code: 3 })
  const lines = textOf(await readAll(logs, desired.sandbox_id))
    .split('\n')
    .filter((line) => line.startsWith('line '))
  assert.deepEqual(
    lines,
    Array.from({ length: 30 }, (_, n) => `line ${String(n + 1)}`),
  )
  await second.remove(desired.run_id)
  await second.close()
  await remove()
})

import assert from 'node:assert/strict'
import { X509Certificate } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { Registry } from 'prom-client'
import { makeLoopMetrics } from '../../src/cli/metrics/loop-metrics.ts'
import { makePullMetrics } from '../../src/cli/metrics/machine-metrics.ts'
import { makeRunMetrics } from '../../src/cli/metrics/run-metrics.ts'
import { makeStartMetrics } from '../../src/cli/metrics/start-metrics.ts'
import { SCRAPE_LIMIT_MS } from '../../src/cli/metrics/server-metrics.ts'
import { moveSandbox } from '../../src/control/sandboxes/transitions/transition.ts'
import type { TransitionRequest } from '../../src/control/sandboxes/transitions/transition-step.ts'
import { makeControlDeps } from '../../src/control/make-deps.ts'
import { explainOldestWaiting } from '../../src/control/workers/explain-waiting.ts'
import { registerWorker } from '../../src/control/workers/worker-join.ts'
import { SYSTEM_ACTOR } from '../../src/domain/orgs/caller.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { StartError } from '../../src/worker/start-error.ts'
import { makeCertificate } from '../support/certificates.ts'
import { makeTestControl, type TestControl } from '../support/control.ts'
import { makeServerMetrics } from '../support/metrics.ts'
import { createTestSandbox } from '../support/quota-world.ts'
import { makeTestClock } from '../support/test-clock.ts'
import { waitUntil } from '../support/wait.ts'

let control: TestControl
before(async () => {
  control = await makeTestControl({ leavesPlacementToLoop: true })
  const workers = [
    ['w1', 4, `now() + interval '30 s'`, 'NULL'],
    ['w2', 8, `now() + interval '30 s'`, 'NULL'],
    ['away', 16, `now() - interval '1 h'`, 'NULL'],
    ['leaving', 32, `now() + interval '30 s'`, 'now()'],
  ] as const
  for (const [name, vcpus, lease, draining] of workers) {
    await registerWorker(control.deps, { name, credential: `credential-of-${name}` })
    await control.asOwner(
      `UPDATE workers SET vcpus = $2, memory_mib = 1024, disk_mib = 100, lease_expires_at = ${lease}, draining_since = ${draining},
         disk = '{"total_mib": 1000, "free_mib": 100, "reserve_mib": 200, "pressure": "short"}',
         driver = '{"name": "simulated", "abilities": [], "default_disk_mib": 10}' WHERE name = $1`,
      [name, vcpus],
    )
  }
})
after(() => control.close())

/** The samples of a text in Prometheus' format, without those of Node. */
function samplesOf(text: string): readonly string[] {
  return text.split('\n').filter((line) => line.startsWith('sandyard_'))
}

const cause = { actor: SYSTEM_ACTOR, code: 'worker_report' } as const

test('the leader shows what workers offer, by state and worker, and which runs wait for which reason', async () => {
  const { id } = await createTestSandbox(control.deps, control.caller, { start: true, vcpus: 16 })
  await createTestSandbox(control.deps, control.caller, { start: true })
  await moveSandbox(control.deps, { sandbox_id: id, run_id: null, event: 'no_capacity', cause })
  const { db } = control.deps
  const explain = () => explainOldestWaiting(control.deps)
  const samples = samplesOf(await makeServerMetrics({ db, explainOldestWaiting: explain }).metrics())
  for (const expected of [
    'sandyard_waiting_run_lacks{need="vcpus"} 1',
    'sandyard_workers{driver="simulated",state="live"} 2',
    'sandyard_workers{driver="simulated",state="silent"} 1',
    'sandyard_workers{driver="simulated",state="draining"} 1',
    'sandyard_fleet_vcpus{driver="simulated"} 12',
    `sandyard_fleet_memory_bytes{driver="simulated"} ${String(2 * 1024 * 2 ** 20)}`,
    `sandyard_worker_disk_bytes{worker="w1"} ${String(100 * 2 ** 20)}`,
    'sandyard_worker_vcpus{worker="away"} 16',
    'sandyard_workers_by_disk_pressure{pressure="short"} 2',
    `sandyard_worker_file_system_free_bytes{worker="w1"} ${String(100 * 2 ** 20)}`,
    'sandyard_worker_state{worker="away",driver="simulated",state="silent"} 1',
    'sandyard_waiting_runs{reason="scheduling"} 1',
    'sandyard_waiting_runs{reason="insufficient_capacity"} 1',
    'sandyard_open_runs{status="starting"} 2',
  ])
    assert.ok(samples.includes(expected), `${expected} is not among:\n${samples.join('\n')}`)
})

test('a sandbox whose disk is on a worker that gets no runs waits for that worker', async () => {
  const { id } = await createTestSandbox(control.deps, control.caller, { start: true })
  await control.asOwner(
    `UPDATE sandboxes SET home_worker_id = (SELECT id FROM workers WHERE name = 'away') WHERE id = $1`,
    [id],
  )
  await moveSandbox(control.deps, { sandbox_id: id, run_id: null, event: 'no_capacity', cause })
  const text = await makeServerMetrics({ db: control.deps.db }).metrics()
  assert.match(text, /^sandyard_waiting_runs\{reason="home_worker_unavailable"\} 1$/m)
  assert.match(text, /^sandyard_waiting_runs_oldest_timestamp_seconds\{reason="home_worker_unavailable"\} \d/m)
})

test('a process that doesn’t lead shows nothing of the installation, so that sums over processes are right', async () => {
  const text = await makeServerMetrics({ db: control.deps.db, isLeading: () => false }).metrics()
  assert.doesNotMatch(text, /^sandyard_(workers|fleet|worker|open_runs|waiting_runs|volumes)\b/m)
  assert.match(text, /^sandyard_ready 1$/m)
})

test('with more workers than the setting allows, only the sums remain', async () => {
  const text = await makeServerMetrics({ db: control.deps.db, workerSeriesMax: 3 }).metrics()
  assert.match(text, /^sandyard_fleet_vcpus\{driver="simulated"\} 12$/m)
  assert.doesNotMatch(text, /^sandyard_worker_/m)
})

test('a scrape whose database doesn’t answer shows the rest after the limit, and starts no second read', async () => {
  const clock = makeTestClock()
  let reads = 0
  const asSystem = (): Promise<never> => {
    reads += 1
    return new Promise(() => undefined)
  }
  const register = makeServerMetrics({ clock, db: { asSystem } })
  for (const failures of [1, 2]) {
    const scrape = register.metrics()
    await waitUntil(() => clock.sleepers === 1) // the read of the database; readiness has answered
    clock.advance(SCRAPE_LIMIT_MS)
    const text = await scrape
    assert.match(text, /^sandyard_build_info\{version="1.2.3"\} 1$/m)
    assert.doesNotMatch(text, /^sandyard_workers\{/m)
    const counted = await register.getSingleMetricAsString('sandyard_metrics_read_failures_total')
    assert.match(counted, new RegExp(`total ${String(failures)}$`, 'm'))
  }
  assert.equal(reads, 1)
})

test('scrapes soon after one another share one read of the database', async () => {
  let reads = 0
  const asSystem: TestControl['deps']['db']['asSystem'] = (fn) => {
    reads += 1
    return control.deps.db.asSystem(fn)
  }
  const register = makeServerMetrics({ db: { asSystem }, clock: makeTestClock(new Date()) })
  await Promise.all([register.metrics(), register.metrics()])
  await register.metrics()
  assert.equal(reads, 1)
})

test('a run counts once, when its transition is committed: its placement, its start, and its end with the reason', async () => {
  const register = new Registry()
  const deps = makeControlDeps({ ...control.deps, ...makeRunMetrics(register) })
  const { id } = await createTestSandbox(deps, control.caller, { start: true })
  const worker_id = await registerWorker(control.deps, { name: 'w1', credential: 'credential-of-w1' })
  const move = (request: Pick<TransitionRequest, 'event' | 'worker' | 'outcome' | 'facts'>) =>
    moveSandbox(deps, { sandbox_id: id, run_id: null, cause, ...request })
  const placed = { event: 'placed', worker: { id: worker_id, name: 'w1' } } as const
  await assert.rejects(
    moveSandbox(deps, { sandbox_id: id, run_id: null, cause, ...placed }, () => Promise.reject(new Error('refused'))),
  )
  for (const _ of [1, 2]) await move(placed)
  await move({ event: 'worker_running', facts: { isolation_level: 'microvm' } })
  const openRuns = async (status: string) =>
    samplesOf(await makeServerMetrics({ db: control.deps.db }).metrics()).includes(
      `sandyard_open_runs{status="${status}"} 1`,
    )
  assert.ok(await openRuns('running'))
  await move({ event: 'stop_requested' })
  assert.ok(await openRuns('stopping'))
  await move({ event: 'worker_stopped', outcome: { kind: 'out_of_memory' } })
  const samples = samplesOf(await register.metrics())
  for (const expected of [
    'sandyard_run_placement_duration_seconds_count 1',
    'sandyard_run_start_duration_seconds_count{isolation="microvm"} 1',
    'sandyard_run_ends_total{status="stopped",outcome="out_of_memory",reason="worker_report"} 1',
  ])
    assert.ok(samples.includes(expected), `${expected} is not among:\n${samples.join('\n')}`)
})

test('a start shows the duration of each phase, and the phase that failed; a worker can not invent a driver', async () => {
  const register = new Registry()
  const deps = makeControlDeps({ ...control.deps, ...makeStartMetrics(register) })
  const worker_id = await registerWorker(control.deps, { name: 'w1', credential: 'credential-of-w1' })
  const image = { phase: 'image', offset_ms: 0, duration_ms: 1500 } as const
  const runtime = { phase: 'runtime', offset_ms: 1500, duration_ms: 20 } as const
  const starts = [
    { event: 'worker_running', start: { driver: 'oci', phases: [image, runtime] } },
    { event: 'worker_start_failed', start: { driver: 'mine', phases: [{ ...image, has_failed: true }] } },
  ] as const
  for (const start of starts) {
    const { id: sandbox_id } = await createTestSandbox(deps, control.caller, { start: true })
    await moveSandbox(deps, { sandbox_id, run_id: null, cause, event: 'placed', worker: { id: worker_id, name: 'w1' } })
    await moveSandbox(deps, { sandbox_id, run_id: null, cause, ...start })
    const { rows } = await control.deps.db.asSystem((q) =>
      q.query({
        text: `SELECT payload->'start_ms' AS start_ms, payload->>'failed_phase' AS failed FROM events
               WHERE sandbox_id = $1 AND payload->'start_ms' IS NOT NULL`,
        values: [sandbox_id],
      }),
    )
    const hasFailed = start.event === 'worker_start_failed'
    const expected = hasFailed
      ? { start_ms: { image: 1500 }, failed: 'image' }
      : { start_ms: { image: 1500, runtime: 20 }, failed: null }
    assert.deepEqual(rows, [expected])
  }
  const samples = samplesOf(await register.metrics())
  for (const expected of [
    'sandyard_run_start_phase_duration_seconds_sum{phase="image",driver="oci"} 1.5',
    'sandyard_run_start_phase_duration_seconds_bucket{le="0.025",phase="runtime",driver="oci"} 1',
    'sandyard_run_start_phase_failures_total{phase="image",driver="unknown"} 1',
  ])
    assert.ok(samples.includes(expected), `${expected} is not among:\n${samples.join('\n')}`)
})

test('a loop shows its passes, failures and last success, and nothing of its successes once another process leads', async () => {
  const register = new Registry()
  const { observer, isLeading } = makeLoopMetrics(register, systemClock)
  observer.onLead([{ name: 'prune', periodMs: 60_000, topics: [], run: () => Promise.resolve(null) }])
  observer.onPass({ loop: 'prune', durationMs: 20, hasFailed: false })
  observer.onPass({ loop: 'prune', durationMs: 20, hasFailed: true })
  assert.ok(isLeading())
  const leading = await register.metrics()
  assert.match(leading, /^sandyard_loop_failures_total\{loop="prune"\} 1$/m)
  assert.match(leading, /^sandyard_loop_pass_duration_seconds_count\{loop="prune"\} 2$/m)
  assert.match(leading, /^sandyard_loop_last_success_timestamp_seconds\{loop="prune"\} \d/m)
  assert.match(leading, /^sandyard_loop_period_seconds\{loop="prune"\} 60$/m)
  observer.onLeadEnd()
  const following = await register.metrics()
  assert.match(following, /^sandyard_leader 0$/m)
  assert.doesNotMatch(following, /^sandyard_loop_(last_success|period)\w*\{/m)
})

test('the certificate of the API and the connection pools are shown', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'sandyard-metrics-'))
  t.after(() => rmSync(folder, { recursive: true }))
  const { certFile } = await makeCertificate(folder)
  const pem = readFileSync(certFile, 'utf8')
  const rejected = { outage: 3, timeout: 0, queue_full: 0 }
  const pool = { name: 'system', max: 8, inUse: 2, idle: 1, connecting: 0, waiting: 5, isAway: true, rejected }
  const text = await makeServerMetrics({ certificate: () => pem, connectionPools: () => [pool] }).metrics()
  const expiry = new X509Certificate(pem).validToDate.getTime() / 1000
  for (const expected of [
    `sandyard_tls_certificate_expiry_timestamp_seconds ${String(expiry)}`,
    'sandyard_database_connections{pool="system",state="in_use"} 2',
    'sandyard_database_waiters{pool="system"} 5',
    'sandyard_database_up{pool="system"} 0',
    'sandyard_database_rejections_total{pool="system",reason="outage"} 3',
  ])
    assert.ok(samplesOf(text).includes(expected), `${expected} is not among:\n${text}`)
})

test('a pull counts with its duration, a stored image does not, and a failure counts by its reason', async () => {
  const register = new Registry()
  const count = makePullMetrics(register, systemClock)
  const config = { env: [], entrypoint: null, cmd: null, workdir: null, user: null }
  const outcomes: readonly (() => Promise<boolean>)[] = [
    () => Promise.resolve(true),
    () => Promise.resolve(false),
    () => Promise.reject(new StartError('registry', 'the registry is away')),
    () => Promise.reject(new Error('a bug')),
  ]
  for (const outcome of outcomes) {
    const images = count({
      list: () => Promise.resolve([]),
      async resolve(reference, { onFetched }) {
        if (await outcome()) onFetched?.()
        return { reference, digest: '', layers: [], config }
      },
    })
    const options = {
      org: control.caller.org_id,
      policy: 'if_missing',
      auth: null,
      signal: AbortSignal.timeout(10_000),
    } as const
    await images.resolve('localhost/demo', options).catch(() => undefined)
  }
  const samples = samplesOf(await register.metrics())
  for (const expected of [
    'sandyard_machine_pull_duration_seconds_count 1',
    'sandyard_machine_pull_failures_total{reason="registry"} 1',
    'sandyard_machine_pull_failures_total{reason="host"} 1',
  ])
    assert.ok(samples.includes(expected), `${expected} is not among:\n${samples.join('\n')}`)
})

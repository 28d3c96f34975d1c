/** What the worker samples of its containers, at the interval of their specification. */
import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { after, before, describe, test, type TestContext } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { UsePoint, UseRange } from '../../../../src/domain/sandboxes/use-points.ts'
import type { RuntimeOptions } from '../../../../src/domain/spec/spec.ts'
import { systemClock } from '../../../../src/lib/clock.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { openCgroupMeter } from '../../../../src/worker/drivers/oci/cgroups/cgroup-meter.ts'
import { openSandboxMetrics, type SandboxMetrics } from '../../../../src/worker/metrics/sandbox-metrics.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeOciFixture, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { waitUntil } from '../../../support/wait.ts'

const NEVER = new AbortController().signal
const MIB = 1_048_576
let fixture: OciFixture
let driver: Driver
let metrics: SandboxMetrics
let dir: string

describe('the samples of a sandbox’s use', { skip: whyNoOci() ?? false, timeout: 120_000 }, () => {
  before(async () => {
    dir = mkdtempSync(join(tmpdir(), 'sandyard-metrics-'))
    fixture = await makeOciFixture()
    await open()
  })
  after(async () => {
    for (const run of await driver.list()) await driver.remove(run.run_id)
    await close()
    assert.deepEqual(await fixture.leftovers(), [])
    await fixture.remove()
    rmSync(dir, { recursive: true })
  })

  async function open(): Promise<void> {
    metrics = await openSandboxMetrics({ dir, retentionMs: 3_600_000, clock: systemClock, log: makeLog('silent') })
    driver = await fixture.open({}, { metrics })
  }
  async function close(): Promise<void> {
    await driver.close()
    await metrics.close()
  }

  test('have processor time, memory, disk, network and processes, and outlive a restart of the worker and the run', async () => {
    const { run_id, sandbox_id } = await start({ metrics_sample_interval_ms: 100 })
    const first = await latestOf(run_id, () => true)
    assert.ok((first.processes ?? 0) >= 1)
    assert.ok(first.memoryBytes > 0)
    assert.equal(typeof first.receivedBytes, 'number')
    await fixture.exec(run_id, ['dd', 'if=/dev/zero', 'of=/root/file', 'bs=1M', 'count=8'])
    const before = first.diskBytes ?? 0
    await latestOf(run_id, ({ diskBytes }) => (diskBytes ?? 0) >= before + 7 * MIB)
    const count = (await metrics.read(sandbox_id, lastMinutes(), 1_000)).points.length
    assert.ok(count >= 1)
    await close()
    await open()
    await waitUntil(async () => (await metrics.read(sandbox_id, lastMinutes(), 1_000)).points.length > count)
    await driver.stop(run_id, 0)
    assert.deepEqual(metrics.latest(null), [])
    const { points } = await metrics.read(sandbox_id, lastMinutes(), 1_000)
    assert.ok(points.reduce((sum, { cpuMs }) => sum + cpuMs, 0) > 0)
    await metrics.discard(sandbox_id)
    assert.deepEqual((await metrics.read(sandbox_id, lastMinutes(), 1_000)).points, [])
  })

  test('end with a last one, so that a short run has one too', async () => {
    const { run_id, sandbox_id } = await start({ metrics_sample_interval_ms: 3_600_000 })
    await latestOf(run_id, () => true)
    await fixture.exec(run_id, ['sh', '-c', 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'])
    const points: (UsePoint | null)[] = []
    metrics.subscribe(sandbox_id, (point) => points.push(point))
    await driver.stop(run_id, 0)
    assert.equal(points.at(-1), null)
  })

  test('are not taken of sandboxes that disable them', async () => {
    const off = await Promise.all([
      start({ metrics_sample_interval_ms: 100, disable_metrics_sample: true }),
      start({ metrics_sample_interval_ms: null }),
      start({ metrics_sample_interval_ms: 0 }),
    ])
    const on = await start({ metrics_sample_interval_ms: 100 })
    const { atMs } = await latestOf(on.run_id, () => true)
    await latestOf(on.run_id, (point) => point.atMs > atMs) // two ticks later than the starts of all others
    for (const { sandbox_id } of off)
      assert.deepEqual((await metrics.read(sandbox_id, lastMinutes(), 1_000)).points, [])
  })
})

function lastMinutes(): UseRange {
  const now = Date.now()
  return { sinceMs: now - 600_000, untilMs: now + 1_000 }
}

async function start(options: Partial<RuntimeOptions>): Promise<DesiredRun> {
  const desired = makeDesiredRun({ runtime: { ...DEFAULT_SPEC_FOR_TESTS.runtime, ...options } })
  await driver.start(desired, NEVER)
  return desired
}

/** The time in which the disk of a busy sandbox is read again. */
const REST_LIMIT_MS = 20_000

async function latestOf(run: string, isWanted: (point: UsePoint) => boolean): Promise<UsePoint> {
  return await waitUntil(() => {
    const found = metrics.latest(null).find(({ run_id }) => run_id === run)?.point
    return found !== undefined && isWanted(found) ? found : undefined
  }, REST_LIMIT_MS)
}

function makeTree(t: TestContext, files: Readonly<Record<string, string>>): string {
  const root = mkdtempSync(join(tmpdir(), 'sandyard-cgroups-'))
  t.after(() => rmSync(root, { recursive: true }))
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(join(root, dirname(path)), { recursive: true })
    writeFileSync(join(root, path), text)
  }
  return root
}

test('a meter reads cgroups of version 2, and of version 1', (t) => {
  const v2 = makeTree(t, {
    'cgroup.controllers': 'cpu memory pids',
    'run/cpu.stat': 'usage_usec 5000\nuser_usec 1\n',
    'run/memory.current': '1000\n',
    'run/memory.stat': 'anon 1\ninactive_file 300\n',
    'run/pids.current': '3\n',
  })
  const v1 = makeTree(t, {
    'cpuacct/run/cpuacct.usage': '5000000\n',
    'memory/run/memory.usage_in_bytes': '1000\n',
    'memory/run/memory.stat': 'inactive_file 1\ntotal_inactive_file 300\n',
    'pids/run/pids.current': '3\n',
  })
  for (const mountPoint of [v2, v1]) {
    const meter = openCgroupMeter({ cgroup: 'run', diskFolder: '/', initPid: process.pid, mountPoint })
    assert.deepEqual([meter.readCpuNs(), meter.readMemoryBytes()], [5_000_000, 1_000])
    const slow = meter.readRest()
    assert.deepEqual([slow.droppableBytes, slow.processes], [300, 3])
    assert.ok((slow.diskBytes ?? 0) > 0 && slow.receivedBytes !== null)
    meter.close()
  }
  assert.throws(() => openCgroupMeter({ cgroup: 'gone', diskFolder: '/', initPid: null, mountPoint: v2 }), /ENOENT/)
})

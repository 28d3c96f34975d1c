/** The metrics of runs that have just ended: kept, readable at once, and without a file if the sandbox is deleted. */
import assert from 'node:assert/strict'
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { asId, type OrgId, type RunId, type SandboxId } from '../../../src/domain/ids.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { openSandboxMetrics, type SandboxMetrics } from '../../../src/worker/metrics/sandbox-metrics.ts'
import { waitUntil } from '../../support/wait.ts'

const BOX = asId<SandboxId>('box')
const ALL = { sinceMs: 0, untilMs: Number.MAX_SAFE_INTEGER }

async function openMetrics(t: TestContext): Promise<{ readonly metrics: SandboxMetrics; readonly dir: string }> {
  const dir = mkdtempSync(join(tmpdir(), 'sandyard-metrics-'))
  t.after(() => rmSync(dir, { recursive: true }))
  const metrics = await openSandboxMetrics({ dir, retentionMs: 60_000, clock: systemClock, log: makeLog('silent') })
  return { metrics, dir }
}

/** Samples a run until it has a point, and ends it. */
async function runOnce(metrics: SandboxMetrics, nth = 1): Promise<void> {
  const run_id = asId<RunId>(`run-${String(nth)}`)
  let cpuNs = 0
  const run = { run_id, sandbox_id: BOX, org_id: asId<OrgId>('org'), intervalMs: 100, isAdopted: false }
  const nothing = { processes: 1, droppableBytes: 0, diskBytes: 0, receivedBytes: 0, sentBytes: 0 }
  const meter = {
    readCpuNs: () => (cpuNs += 1_000_000),
    readMemoryBytes: () => 1_000,
    readRest: () => nothing,
    close: () => undefined,
  }
  metrics.begin(run, () => meter)
  await waitUntil(() => metrics.latest(null).some((use) => use.run_id === run_id))
  metrics.end(run_id)
}

const secondsOf = async (metrics: SandboxMetrics): Promise<number> => {
  const { points } = await metrics.read(BOX, ALL, 1_000)
  return points.reduce((sum, { coveredMs }) => sum + coveredMs, 0) / 1_000
}

test('can be read at once, and are written a little later although nobody reads', async (t) => {
  const { metrics, dir } = await openMetrics(t)
  await runOnce(metrics)
  assert.equal(existsSync(join(dir, BOX)), false)
  await waitUntil(() => existsSync(join(dir, BOX)))
  const first = await secondsOf(metrics)
  assert.ok(first > 0)
  await runOnce(metrics, 2)
  assert.ok((await secondsOf(metrics)) > first)
  await metrics.close()
})

test('are written when the worker ends', async (t) => {
  const { metrics, dir } = await openMetrics(t)
  await runOnce(metrics)
  await metrics.close()
  assert.ok(existsSync(join(dir, BOX)))
})

test('of two runs that follow each other at once are both kept', async (t) => {
  const { metrics } = await openMetrics(t)
  await runOnce(metrics)
  await runOnce(metrics, 2)
  const { points } = await metrics.read(BOX, ALL, 1_000)
  const cpuMs = points.reduce((sum, point) => sum + point.cpuMs, 0)
  assert.ok(cpuMs >= 4, `each run was sampled at least twice: ${String(cpuMs)} ms`)
  await metrics.close()
})

test('make no file if the sandbox is deleted', async (t) => {
  const { metrics, dir } = await openMetrics(t)
  await runOnce(metrics)
  await metrics.discard(BOX)
  await metrics.close()
  assert.deepEqual(readdirSync(dir), [])
})

/** The file of a sandbox's use: what is kept, for how long, and after a crash. */
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { USE_LEVELS, type UsePoint } from '../../../src/domain/sandboxes/use-points.ts'
import { makeUseHistory, readUsePoints } from '../../../src/worker/metrics/use-history.ts'

const [SECONDS, MINUTES, HOURS] = USE_LEVELS
const START = Date.UTC(2028, 1, 29, 12)
const ALL = { sinceMs: 0, untilMs: Number.MAX_SAFE_INTEGER }

function makePath(t: TestContext): string {
  const dir = mkdtempSync(join(tmpdir(), 'sandyard-use-'))
  t.after(() => rmSync(dir, { recursive: true }))
  return join(dir, 'box')
}

function point(atMs: number, over: Partial<UsePoint> = {}): UsePoint {
  return {
    atMs,
    coveredMs: 1_000,
    cpuMs: 100,
    memoryBytes: 1_000,
    memoryMaxBytes: 1_000,
    processes: 1,
    diskBytes: 5,
    receivedBytes: 10,
    sentBytes: 20,
    ...over,
  }
}

test('seconds are kept as they are, and merged into minutes and hours', async (t) => {
  const path = makePath(t)
  const history = makeUseHistory(path)
  for (let second = 0; second < 90; second++)
    history.add(
      point(START + second * 1_000 + 7, { memoryBytes: second, memoryMaxBytes: second, processes: second % 3 }),
    )
  history.flush()
  const seconds = await readUsePoints(path, SECONDS, ALL)
  assert.equal(seconds.length, 90)
  assert.deepEqual(seconds[0], point(START, { memoryBytes: 0, memoryMaxBytes: 0, processes: 0 }))
  const minutes = await readUsePoints(path, MINUTES, ALL)
  assert.deepEqual(
    minutes.map(({ atMs, coveredMs, cpuMs, memoryMaxBytes, processes, receivedBytes }) => [
      atMs - START, coveredMs, cpuMs, memoryMaxBytes, processes, receivedBytes,
    ]), // prettier-ignore
    [
      [0, 60_000, 6_000, 59, 2, 600],
      [60_000, 30_000, 3_000, 89, 2, 300],
    ],
  )
  assert.ok(Math.abs((minutes[0]?.memoryBytes ?? 0) - 29.5) < 1e-6)
  const [hour, ...others] = await readUsePoints(path, HOURS, ALL)
  assert.deepEqual([hour?.coveredMs, hour?.sentBytes, others.length], [90_000, 1_800, 0])
  history.close()
})

test('what a driver can’t measure stays unknown, and a range selects points by their start', async (t) => {
  const path = makePath(t)
  const history = makeUseHistory(path)
  const unknown = { processes: null, diskBytes: null, receivedBytes: null, sentBytes: null }
  for (const second of [0, 1, 2]) history.add(point(START + second * 1_000, unknown))
  history.close()
  const found = await readUsePoints(path, SECONDS, { sinceMs: START + 1_000, untilMs: START + 2_000 })
  assert.deepEqual(found, [point(START + 1_000, unknown)])
  assert.deepEqual(await readUsePoints(join(path, '..', 'missing'), SECONDS, ALL), [])
})

test('a later process continues the minute and the hour, and one that was killed lost at most a minute', async (t) => {
  const path = makePath(t)
  const first = makeUseHistory(path)
  for (let second = 0; second < 150; second++) first.add(point(START + second * 1_000))
  // Not closed: the process was killed.
  const second = makeUseHistory(path)
  second.add(point(START + 200_000))
  second.close()
  const [hour] = await readUsePoints(path, HOURS, ALL)
  assert.equal(hour?.coveredMs, 131_000) // the points until the second minute was over, ten at a time, and the new one
  first.close()
})

test('the file is bounded: each row is replaced after its level’s time', async (t) => {
  const path = makePath(t)
  const history = makeUseHistory(path)
  const month = HOURS.keptMs
  for (let at = START; at < START + month + 7_200_000; at += 600_000) history.add(point(at))
  for (let second = 0; second < 4_000; second++) history.add(point(START + month + 7_200_000 + second * 1_000))
  history.close()
  assert.ok(statSync(path).size <= 420_000, String(statSync(path).size))
  const now = START + month + 7_200_000 + 4_000_000
  const kept = await readUsePoints(path, SECONDS, { sinceMs: now - SECONDS.keptMs, untilMs: now })
  assert.equal(kept.length, 3_600)
  assert.deepEqual(
    kept.map(({ atMs }) => atMs),
    kept.map((_, index) => now - SECONDS.keptMs + index * 1_000),
  )
  const hours = await readUsePoints(path, HOURS, { sinceMs: now - month, untilMs: now })
  assert.ok(hours.length <= month / HOURS.stepMs + 1)
})

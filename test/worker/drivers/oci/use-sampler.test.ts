/** What the worker samples of its containers, at the interval of their specification. */
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { RuntimeOptions } from '../../../../src/domain/spec/spec.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { readUseSample, type UseSample } from '../../../../src/worker/drivers/oci/run/use-sample.ts'
import { makeOciFixture, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { until } from '../conformance.ts'

const NEVER = new AbortController().signal
const MIB = 1_048_576
let fixture: OciFixture
let driver: Driver

describe('the samples of a sandbox’s use', { skip: whyNoOci() ?? false, timeout: 120_000 }, () => {
  before(async () => {
    fixture = await makeOciFixture()
    driver = await fixture.open()
  })
  after(async () => {
    for (const run of await driver.list()) await driver.remove(run.run_id)
    await driver.close()
    assert.deepEqual(await fixture.leftovers(), [])
    await fixture.remove()
  })

  test('have processor time, memory, disk, network and processes, and go on after a restart of the worker', async () => {
    const { run_id } = await start({ metrics_sample_interval_ms: 100 })
    const first = await sampleOf(run_id, () => true)
    assert.ok(first.processes >= 1)
    assert.ok(first.memory_bytes > 0)
    assert.ok(first.disk_size_bytes > first.disk_used_bytes)
    assert.equal(typeof first.received_bytes, 'number')
    await fixture.exec(run_id, ['dd', 'if=/dev/zero', 'of=/root/file', 'bs=1M', 'count=8'])
    const later = await sampleOf(run_id, ({ disk_used_bytes }) => disk_used_bytes >= first.disk_used_bytes + 7 * MIB)
    assert.ok(later.cpu_ns > first.cpu_ns)
    assert.ok(later.used_vcpus !== null && later.used_vcpus >= 0)
    await driver.close()
    driver = await fixture.open()
    await sampleOf(run_id, ({ at }) => at > later.at)
    await driver.stop(run_id, 0)
    assert.equal(await readUseSample(run_id), null)
  })

  test('are not taken of sandboxes that disable them', async () => {
    const off = await Promise.all([
      start({ metrics_sample_interval_ms: 100, disable_metrics_sample: true }),
      start({ metrics_sample_interval_ms: null }),
      start({ metrics_sample_interval_ms: 0 }),
    ])
    const on = await start({ metrics_sample_interval_ms: 100 })
    const { at } = await sampleOf(on.run_id, () => true)
    await sampleOf(on.run_id, (sample) => sample.at > at) // two ticks later than the starts of all others
    for (const { run_id } of off) assert.equal(await readUseSample(run_id), null)
  })
})

async function start(options: Partial<RuntimeOptions>): Promise<DesiredRun> {
  const desired = makeDesiredRun({ runtime: { ...DEFAULT_SPEC_FOR_TESTS.runtime, ...options } })
  await driver.start(desired, NEVER)
  return desired
}

async function sampleOf(run: string, isWanted: (sample: UseSample) => boolean): Promise<UseSample> {
  let found: UseSample | null = null
  await until(async () => {
    found = await readUseSample(run)
    return found !== null && isWanted(found)
  })
  assert.ok(found !== null)
  return found
}

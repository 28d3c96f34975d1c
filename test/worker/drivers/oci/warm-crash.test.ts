import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import { systemClock } from '../../../../src/lib/clock.ts'
import type { OciRunRecord } from '../../../../src/worker/drivers/oci/run/run-records.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeOciFixture, testRuntime, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { waitUntil } from '../../../support/wait.ts'
import { find } from '../conformance.ts'

const NEVER = new AbortController().signal
const WORKER = join(import.meta.dirname, '../../../support/oci-worker-process.ts')
const skip = whyNoOci() ?? (testRuntime() === 'crun' ? false : 'only crun has warm sandboxes')
let fixture: OciFixture

describe('after a crash with warm sandboxes, the oci driver', { skip, timeout: 240_000 }, () => {
  beforeEach(async () => {
    fixture = await makeOciFixture()
  })
  afterEach(() => fixture.remove())

  test('removes those that no run took, even half made ones', async () => {
    for (const [word, delayMs] of [
      ['open', 150],
      ['open', 300],
      ['warming', 0],
      ['warming', 30],
      ['warm', 0],
    ] as const) {
      await killWorkerAfter(word, makeDesiredRun(), delayMs)
      const driver = await fixture.open({ readyAhead: 0 })
      for (const run of await driver.list()) await driver.remove(run.run_id)
      for (const sandbox of await driver.listStored()) await driver.discard(sandbox)
      await assertNothingLeft(`${word} and ${String(delayMs)} ms`)
      await driver.close()
    }
  })

  test('undoes a start that was cut short while it took one, and starts the run anew when asked again', async () => {
    let taken = 0
    for (const delayMs of [0, 2, 4, 6, 8, 10, 15, 20, 40]) {
      const desired = makeDesiredRun()
      await killWorkerAfter('warm', desired, delayMs)
      if (containerOf(desired) !== undefined) taken += 1
      const driver = await fixture.open({ readyAhead: 0 })
      await driver.start(desired, NEVER)
      assert.equal((await find(driver, desired.run_id))?.phase, 'running', `after ${String(delayMs)} ms`)
      assert.equal((await fixture.exec(desired.run_id, ['hostname'])).stdout, 'brave-otter\n')
      await driver.remove(desired.run_id)
      await assertNothingLeft(`after ${String(delayMs)} ms`)
      await driver.close()
    }
    assert.ok(taken > 0, 'no start was cut short after it took a warm sandbox')
  })

  test('adopts a run that took one, reads its end, and stops it', async () => {
    const desired = makeDesiredRun()
    await killWorkerAfter('started', desired)
    assert.notEqual(containerOf(desired), undefined)
    const driver = await fixture.open({ readyAhead: 0 })
    assert.equal((await find(driver, desired.run_id))?.phase, 'running')
    assert.equal((await fixture.exec(desired.run_id, ['echo', 'here'])).stdout, 'here\n')
    await driver.close()
    process.kill(readRecord(desired)?.started?.init?.pid ?? 0, 'SIGKILL')
    await waitUntil(() => existsSync(join(fixture.dir, 'state/exits', containerOf(desired) ?? '')))
    const next = await fixture.open({ readyAhead: 0 })
    assert.deepEqual((await find(next, desired.run_id))?.outcome, { kind: 'signalled', signal: 'SIGKILL' })
    await next.remove(desired.run_id)
    await assertNothingLeft('the end')
    await next.close()
  })
})

/** Fails unless no mount, network, loop device, cgroup, process or file of any container is left. */
async function assertNothingLeft(when: string): Promise<void> {
  assert.deepEqual(readdirSync(join(fixture.dir, 'state/runs')), [], when)
  assert.deepEqual(readdirSync(join(fixture.dir, 'state/exits')), [], when)
  await waitUntil(async () => (await fixture.leftovers()).length === 0) // the kernel frees loop devices a moment later
  await waitUntil(() => shimsOf(fixture.dir).length === 0)
}

function shimsOf(dir: string): readonly string[] {
  return readdirSync('/proc').filter((pid) => {
    try {
      return /^\d+$/.test(pid) && readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(`sandyard-shim\0${dir}/`)
    } catch {
      return false // the process has ended meanwhile
    }
  })
}

function containerOf(desired: DesiredRun): string | undefined {
  return readRecord(desired)?.container_id
}

function readRecord(desired: DesiredRun): OciRunRecord | null {
  const path = join(fixture.dir, 'state/runs', desired.run_id, 'state.json')
  return existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as OciRunRecord) : null // the driver's own file
}

/** Starts a worker with warm sandboxes, waits for one of its messages and then some time, and kills it with SIGKILL. */
async function killWorkerAfter(word: string, desired: DesiredRun, delayMs = 0): Promise<void> {
  const worker = spawn(process.execPath, [WORKER, fixture.dir, JSON.stringify(desired)], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, SANDYARD_TEST_WARM: '2' },
  })
  const exited = once(worker, 'exit')
  let said = ''
  worker.stdout.on('data', (chunk: Buffer) => {
    said += chunk.toString()
  })
  await waitUntil(() => said.split('\n').includes(word) || worker.exitCode !== null, 60_000)
  await systemClock.sleep(delayMs)
  worker.kill('SIGKILL')
  await exited
}

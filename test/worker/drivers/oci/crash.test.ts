import assert from 'node:assert/strict'
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import { systemClock } from '../../../../src/lib/clock.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import type { OciRunRecord } from '../../../../src/worker/drivers/oci/run/run-records.ts'
import { MACHINE_RESTARTED } from '../../../../src/worker/drivers/shared/run-records.ts'
import { makeOciFixture, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { find, until } from '../conformance.ts'

const NEVER = new AbortController().signal
const WORKER = join(import.meta.dirname, '../../../support/oci-worker-process.ts')
let fixture: OciFixture
let drivers: Driver[]

describe('after a crash, the oci driver', { skip: whyNoOci() ?? false, timeout: 120_000 }, () => {
  beforeEach(async () => {
    fixture = await makeOciFixture()
    drivers = []
  })
  afterEach(async () => {
    for (const driver of drivers) await driver.close()
    const last = await fixture.open({ readyAhead: 0 })
    for (const run of await last.list()) await last.remove(run.run_id)
    await last.close()
    assert.deepEqual(await fixture.leftovers(), [])
    await fixture.remove()
  })

  test('adopts a running sandbox of a killed worker, and can run commands in it and stop it', async () => {
    const desired = makeDesiredRun()
    await killWorkerAfter('started', desired)
    const driver = await open()
    assert.equal((await find(driver, desired.run_id))?.phase, 'running')
    assert.equal((await fixture.exec(desired.run_id, ['echo', 'here'])).stdout, 'here\n')
    await driver.stop(desired.run_id, 1000)
    assert.deepEqual((await find(driver, desired.run_id))?.outcome, { kind: 'stopped' })
  })

  test('reports how a sandbox ended, even if it ended while no worker was running', async () => {
    const cmd = ['sh', '-c', 'sleep 0.5; exit 9']
    const desired = makeDesiredRun({ runtime: { ...DEFAULT_SPEC_FOR_TESTS.runtime, cmd } })
    await killWorkerAfter('started', desired)
    const exit = join(fixture.dir, 'state/exits', desired.run_id)
    await until(() => Promise.resolve(readOrEmpty(exit) !== ''))
    const driver = await open()
    assert.deepEqual((await find(driver, desired.run_id))?.outcome, { kind: 'exited', code: 9 })
    assert.deepEqual(await fixture.leftovers(), [])
  })

  test('undoes a start that was cut short at any instant, and starts the run anew when asked again', async () => {
    for (const delayMs of [0, 5, 10, 15, 20, 25, 30, 35, 40, 50, 60]) {
      const desired = makeDesiredRun()
      await killWorkerAfter('open', desired, delayMs)
      const driver = await open()
      await driver.start(desired, NEVER)
      assert.equal((await find(driver, desired.run_id))?.phase, 'running', `after ${String(delayMs)} ms`)
      await driver.remove(desired.run_id)
      assert.deepEqual(await fixture.leftovers(), [], `after ${String(delayMs)} ms`)
      await driver.close()
    }
  })

  test('reports a sandbox as lost when nothing saw its end, and cleans up after it', async () => {
    const desired = makeDesiredRun()
    const driver = await open()
    await driver.start(desired, NEVER)
    const { started } = readRecord(desired)
    process.kill(started?.shim?.pid ?? 0, 'SIGKILL')
    await systemClock.sleep(50)
    assert.equal((await find(driver, desired.run_id))?.phase, 'running')
    process.kill(started?.init?.pid ?? 0, 'SIGKILL')
    await until(async () => (await find(driver, desired.run_id))?.outcome?.kind === 'lost')
    await until(async () => (await fixture.leftovers()).length === 0)
  })

  test('does not mistake another process that reuses the process id of a sandbox for it', async () => {
    const desired = makeDesiredRun()
    const first = await open()
    await first.start(desired, NEVER)
    await first.close()
    const record = readRecord(desired)
    changeRecord(desired, { started: stranger(record) })
    const driver = await open()
    assert.equal((await find(driver, desired.run_id))?.outcome?.kind, 'lost')
    assert.deepEqual(await fixture.leftovers(), [])
  })

  test('reports the runs of an earlier boot as lost', async () => {
    const desired = makeDesiredRun()
    const first = await open()
    await first.start(desired, NEVER)
    await first.close()
    changeRecord(desired, { boot_id: 'another' })
    const driver = await open()
    const seen = await find(driver, desired.run_id)
    assert.deepEqual(seen?.outcome, MACHINE_RESTARTED)
  })

  test('ignores a record that was cut short', async () => {
    const desired = makeDesiredRun()
    const first = await open()
    await first.start(desired, NEVER)
    await first.close()
    writeFileSync(recordPath(desired), '{"version":1,"run')
    const driver = await open()
    assert.deepEqual(await driver.list(), [])
    assert.deepEqual(
      (await fixture.leftovers()).filter((left) => !left.startsWith('sy')),
      [],
    )
    await driver.start(desired, NEVER)
    assert.equal((await find(driver, desired.run_id))?.phase, 'running')
  })
})

async function open(): Promise<Driver> {
  const driver = await fixture.open({ readyAhead: 0 })
  drivers.push(driver)
  return driver
}

/** Starts a worker, waits for one of its messages and then some time, and kills it with SIGKILL. */
async function killWorkerAfter(word: string, desired: DesiredRun, delayMs = 0): Promise<void> {
  const worker: ChildProcess = spawn(process.execPath, [WORKER, fixture.dir, JSON.stringify(desired)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const exited = once(worker, 'exit')
  let said = ''
  worker.stdout?.on('data', (chunk: Buffer) => {
    said += chunk.toString()
  })
  await until(() => Promise.resolve(said.includes(word) || worker.exitCode !== null))
  await systemClock.sleep(delayMs)
  worker.kill('SIGKILL')
  await exited
}

function recordPath(desired: DesiredRun): string {
  return join(fixture.dir, 'state/runs', desired.run_id, 'state.json')
}

function readRecord(desired: DesiredRun): OciRunRecord {
  return JSON.parse(readFileSync(recordPath(desired), 'utf8')) as OciRunRecord // the driver's own file
}

function changeRecord(desired: DesiredRun, change: Partial<OciRunRecord>): void {
  writeFileSync(recordPath(desired), JSON.stringify({ ...readRecord(desired), ...change }))
}

/** The `started` of a record with ids of other live processes, whose start times differ from those in the record. */
function stranger({ started }: OciRunRecord): OciRunRecord['started'] {
  return started === null
    ? null
    : { ...started, shim: { pid: process.pid, startTicks: 1 }, init: { pid: process.ppid, startTicks: 1 } }
}

function readOrEmpty(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return '' // the file is not written yet
  }
}

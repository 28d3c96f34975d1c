import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import { systemClock } from '../../../../src/lib/clock.ts'
import { localCommands } from '../../../../src/lib/run-command.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { mount, mountPointsBelow, unmountBelow } from '../../../../src/worker/mounts.ts'
import { removePins } from '../../../../src/worker/drivers/shared/pin-mounts.ts'
import { makeExt4, whyNoDiskImages } from '../../../support/disk-images.ts'
import { bind, diskImage, named, tmpfs, desiredRunWithMounts } from '../../../support/mounts.ts'
import { makeOciFixture, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { find, until } from '../conformance.ts'

const NEVER = new AbortController().signal
const diskImages = { skip: whyNoDiskImages() ?? false }
const WORKER = join(import.meta.dirname, '../../../support/oci-worker-process.ts')
/** Every kind of mount: a volume, a folder and a file of the default volume, and nested mounts. */
const MOUNTS = [
  named('v', '/data'),
  named('w', '/data/inner/w'),
  bind('folder', '/folder'),
  bind('file', '/file'),
  tmpfs('/mem'),
  named('v', '/mem/v', { readonly: true }),
]
let fixture: OciFixture
let drivers: Driver[]

describe('the content of volumes', { skip: whyNoOci() ?? false, timeout: 120_000 }, () => {
  beforeEach(async () => {
    fixture = await makeOciFixture()
    drivers = []
    for (const folder of [fixture.volumeFolder('v'), fixture.volumeFolder('w'), join(fixture.volume, 'folder')]) {
      mkdirSync(join(folder, 'deep'), { recursive: true })
      for (const name of ['kept', 'deep/kept', 'empty'])
        writeFileSync(join(folder, name), name === 'empty' ? '' : 'kept')
    }
    writeFileSync(join(fixture.volume, 'file'), '')
  })
  afterEach(async () => {
    for (const driver of drivers) await driver.close()
    const last = await open()
    for (const run of await last.list()) await last.remove(run.run_id)
    for (const sandbox of await last.listStored()) await last.discard(sandbox)
    await last.close()
    assert.deepEqual(await fixture.leftovers(), [])
    assertKept()
    await fixture.remove()
  })

  test('outlives the stop, the removal and the discarding of every sandbox that mounts it', async () => {
    const driver = await open()
    const [one, two] = [desiredRunWithMounts(MOUNTS), desiredRunWithMounts(MOUNTS)]
    await driver.start(one, NEVER)
    await driver.start(two, NEVER)
    await driver.stop(one.run_id, 0)
    assert.equal((await fixture.exec(two.run_id, ['cat', '/data/deep/kept'])).stdout, 'kept')
    await driver.remove(one.run_id)
    await driver.discard(one.sandbox_id)
    assertKept()
    await driver.remove(two.run_id)
    await driver.discard(two.sandbox_id)
  })

  test('outlives a worker that is killed at any instant of a start, and the clean-up of the next one', async () => {
    for (const delayMs of [0, 5, 10, 15, 20, 25, 30, 35, 40, 50, 60, 80]) {
      const desired = desiredRunWithMounts(MOUNTS)
      await killWorkerAfter('open', desired, delayMs)
      const driver = await open()
      assertKept()
      await driver.start(desired, NEVER)
      assert.equal((await find(driver, desired.run_id))?.phase, 'running', `after ${String(delayMs)} ms`)
      await driver.remove(desired.run_id)
      assert.deepEqual(await fixture.leftovers(), [], `after ${String(delayMs)} ms`)
      await driver.close()
      assertKept()
    }
  })

  test('outlives a sandbox that is adopted from a killed worker', async () => {
    const desired = desiredRunWithMounts(MOUNTS)
    await killWorkerAfter('started', desired, 0)
    const driver = await open()
    assert.equal((await fixture.exec(desired.run_id, ['cat', '/data/deep/kept'])).stdout, 'kept')
    await driver.stop(desired.run_id, 0)
    assert.deepEqual(await fixture.leftovers(), [])
  })

  test('with a disk image outlives a worker that is killed at any instant of a start', diskImages, async () => {
    await makeExt4(fixture, 'd.img', { kept: 'kept' })
    for (const delayMs of [0, 25, 50, 75, 100, 150]) {
      const desired = desiredRunWithMounts([diskImage('d.img', '/disk')])
      await killWorkerAfter('open', desired, delayMs)
      const driver = await open()
      await driver.start(desired, NEVER)
      assert.equal((await fixture.exec(desired.run_id, ['cat', '/disk/kept'])).stdout, 'kept')
      await driver.remove(desired.run_id)
      assert.deepEqual(await fixture.leftovers(), [], `after ${String(delayMs)} ms`)
      await driver.close()
    }
  })

  test('with a disk image outlives a sandbox that is adopted from a killed worker', diskImages, async () => {
    await makeExt4(fixture, 'd.img', { kept: 'kept' })
    const desired = desiredRunWithMounts([diskImage('d.img', '/disk')])
    await killWorkerAfter('started', desired, 0)
    const driver = await open()
    assert.equal(
      (await fixture.exec(desired.run_id, ['sh', '-c', 'echo new >/disk/new; cat /disk/kept'])).stdout,
      'kept',
    )
    await driver.remove(desired.run_id)
    const again = { ...desiredRunWithMounts([diskImage('d.img', '/disk', { readonly: true })]) }
    await driver.start(again, NEVER)
    assert.equal((await fixture.exec(again.run_id, ['cat', '/disk/new'])).stdout, 'new\n')
  })

  test('outlives a clean-up while a process of the machine keeps the mount busy', async () => {
    const driver = await open()
    const desired = desiredRunWithMounts([named('v', '/data')])
    await driver.start(desired, NEVER)
    const pin =
      (await mountPointsBelow('/run/sandyard')).find((point) => point.endsWith(`${desired.run_id}/pins/0`)) ?? ''
    const holder = spawn('sleep', ['30'], { cwd: pin, stdio: 'ignore' })
    const exited = once(holder, 'exit')
    try {
      await driver.remove(desired.run_id)
      assert.deepEqual(await fixture.leftovers(), [])
    } finally {
      holder.kill()
      await exited
    }
  })

  test('can not be deleted by the last step of a clean-up, even where nothing was unmounted', async () => {
    const pins = join(fixture.dir, 'pins')
    const [folder, file] = [join(pins, '0'), join(pins, '1')]
    mkdirSync(folder, { recursive: true })
    writeFileSync(file, '')
    for (const [source, pin] of [
      [fixture.volumeFolder('v'), folder],
      [join(fixture.volume, 'file'), file],
    ] as const) {
      await mount(localCommands, ['--bind', source, pin])
      await assert.rejects(removePins(pins), /EBUSY/)
      assertKept()
      await unmountBelow(pin, { clock: systemClock, commands: localCommands })
      await (pin === folder ? rmdir(folder) : removePins(pins))
    }
    assert.ok(!existsSync(pins))
  })
})

function assertKept(): void {
  for (const folder of [fixture.volumeFolder('v'), fixture.volumeFolder('w'), join(fixture.volume, 'folder')]) {
    for (const name of ['kept', 'deep/kept']) assert.equal(readFileSync(join(folder, name), 'utf8'), 'kept')
    assert.equal(readFileSync(join(folder, 'empty'), 'utf8'), '')
  }
  assert.equal(readFileSync(join(fixture.volume, 'file'), 'utf8'), '')
}

async function open(): Promise<Driver> {
  const driver = await fixture.open({ readyAhead: 0 })
  drivers.push(driver)
  return driver
}

/** Starts a worker, waits for one of its messages and then some time, and kills it with SIGKILL. */
async function killWorkerAfter(word: string, desired: DesiredRun, delayMs: number): Promise<void> {
  const worker = spawn(process.execPath, [WORKER, fixture.dir, JSON.stringify(desired)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const exited = once(worker, 'exit')
  let said = ''
  worker.stdout.on('data', (chunk: Buffer) => {
    said += chunk.toString()
  })
  await until(() => Promise.resolve(said.includes(word) || worker.exitCode !== null))
  await systemClock.sleep(delayMs)
  worker.kill('SIGKILL')
  await exited
}

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { after, afterEach, before, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import {
  findInstallation,
  vmPaths,
  findMissingMicroVmRequirements,
} from '../../../../src/worker/drivers/microsandbox/installation.ts'
import { openStoredSandboxes } from '../../../../src/worker/drivers/microsandbox/stored-sandboxes.ts'
import { openVmRunRecords, type VmRunRecord } from '../../../../src/worker/drivers/microsandbox/vm-records.ts'
import { identifyProcess, readBootId } from '../../../../src/worker/processes/process-identity.ts'
import { makeMicroVmFixture, type MicroVmFixture } from '../../../support/microvm-driver.ts'
import { named, desiredRunWithMounts } from '../../../support/mounts.ts'
import { waitUntil } from '../../../support/wait.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { find } from '../conformance.ts'

/**
 * Tests of the driver that need no virtualization. The genuine runtime runs up to the first instruction of a guest. For
 * the adoption of runs, another process imitates the runtime's VM process. The tests that need a guest are in
 * ../microsandbox.test.ts.
 */
const NEVER = new AbortController().signal
const whyNot =
  process.getuid?.() !== 0
    ? 'needs root'
    : findInstallation() === null
      ? 'the optional npm package microsandbox is not installed'
      : null
const canBoot = (await findMissingMicroVmRequirements()).length === 0
const opensKvm = (await findMissingMicroVmRequirements()).every((lack) => !lack.includes('/dev/kvm'))

describe('a start of a microVM', { skip: whyNot ?? false }, () => {
  let fixture: MicroVmFixture
  let opened: Driver[] = []

  before(async () => {
    fixture = await makeMicroVmFixture()
  })
  afterEach(async () => {
    for (const driver of opened) await driver.close()
    const last = await fixture.open()
    for (const { run_id } of await last.list()) await last.remove(run_id)
    for (const sandbox of await last.listStored()) await last.discard(sandbox)
    await last.close()
    opened = []
    assert.deepEqual(await fixture.leftovers(), [])
  })
  after(async () => {
    await fixture.remove()
  })
  const open = async (): Promise<Driver> => {
    const driver = await fixture.open()
    opened.push(driver)
    return driver
  }
  const isOf = (reason: string) => (error: unknown) => error instanceof StartError && error.reason === reason

  const secret = { key: 'TOKEN', value: 'kept-from-ps-9317' }
  let shownByProcesses: readonly string[] | null = null

  /**
   * Starts a run whose environment has the secret. Records the command line and environment of every process that
   * appears during the start. A failed boot takes 30 s.
   */
  async function startObserved(driver: Driver, desired: DesiredRun): Promise<PromiseSettledResult<unknown>> {
    const earlier = new Set(processIds())
    const shown: string[] = []
    const looking = setInterval(() => {
      shown.push(...processIds().flatMap((pid) => (earlier.has(pid) ? [] : textsOfProcess(pid))))
    }, 25)
    const [start] = await Promise.allSettled([driver.start(desired, NEVER)])
    clearInterval(looking)
    assert.ok(shown.some((text) => text.includes(vmPaths(fixture.home, desired.sandbox_id).name)))
    shownByProcesses = shown
    return start
  }

  test('that does not boot fails for the runtime, and leaves no disk, no process and no half imported image', async (t) => {
    if (canBoot || !opensKvm) return t.skip(canBoot ? 'microVMs boot here' : '/dev/kvm does not open')
    const driver = await open()
    const desired = makeDesiredRun({ env: [secret] })
    const start = await startObserved(driver, desired)
    assert.ok(start.status === 'rejected' && isOf('runtime')(start.reason))
    assert.deepEqual(await driver.listStored(), [])
    assert.equal((await find(driver, desired.run_id))?.outcome?.kind, 'start_failed')
    await assert.rejects(driver.start(desired, NEVER), isOf('runtime'))
  })

  test('puts no value of its environment into the command line or environment of a process', async (t) => {
    if (!opensKvm) return t.skip('/dev/kvm does not open')
    if (shownByProcesses === null) {
      const driver = await open()
      const desired = makeDesiredRun({ env: [secret] })
      assert.equal((await startObserved(driver, desired)).status, 'fulfilled')
      await driver.remove(desired.run_id)
    }
    assert.ok(shownByProcesses?.every((text) => !text.includes(secret.value)))
  })

  test('that is cancelled during the boot leaves nothing', async (t) => {
    if (!opensKvm) return t.skip('/dev/kvm does not open')
    const driver = await open()
    const desired = makeDesiredRun()
    const abort = new AbortController()
    const started = assert.rejects(driver.start(desired, abort.signal), isOf('cancelled'))
    await waitUntil(async () => (await fixture.leftovers()).some((left) => left.startsWith('sandbox --name')))
    abort.abort(new Error('test'))
    await started
    assert.deepEqual(await driver.listStored(), [])
  })

  test('with a missing image, or a volume that the run was not given, fails for that reason', async () => {
    const driver = await open()
    await assert.rejects(driver.start(makeDesiredRun({ image: 'elsewhere/none' }), NEVER), isOf('image'))
    const stray = { ...desiredRunWithMounts([named('v', '/d')]), volumes: [] }
    await assert.rejects(driver.start({ ...stray, spec: { ...stray.spec, image: 'local/box' } }, NEVER), isOf('mount'))
  })

  test('with a patch whose file is not on the volume fails for the patch', async () => {
    const driver = await open()
    const patch = { type: 'copy_file', src: '/none', dst: '/x', mode: null, replace: false } as const
    await assert.rejects(driver.start(makeDesiredRun({ patches: [patch] }), NEVER), isOf('patch'))
  })

  test('can be stopped while its image is pulled', async () => {
    const driver = await open()
    const desired = makeDesiredRun({ image: 'local/slow' })
    const rejected = assert.rejects(driver.start(desired, NEVER), isOf('cancelled'))
    await waitUntil(async () => (await find(driver, desired.run_id))?.phase === 'starting')
    await driver.stop(desired.run_id, 0)
    await rejected
  })

  test('is adopted when the worker was restarted, and the run ends with the status that the runtime reports', async () => {
    const desired = makeDesiredRun()
    const vm = await playVm(fixture, desired)
    const first = await open()
    assert.equal((await find(first, desired.run_id))?.phase, 'running')
    assert.deepEqual(await first.listStored(), [desired.sandbox_id])
    await first.start(desired, NEVER)
    await first.close()
    assert.equal(vm.exitCode, null)
    const second = await open()
    let calls = 0
    second.watch(() => {
      calls += 1
    })
    vm.kill('SIGKILL')
    const ended = await waitUntil(async () => {
      const seen = await find(second, desired.run_id)
      return seen?.phase === 'ended' && seen
    })
    assert.equal(ended.outcome?.kind, 'lost')
    await waitUntil(() => calls > 0)
    await second.remove(desired.run_id)
    await second.discard(desired.sandbox_id)
    assert.deepEqual(await second.listStored(), [])
  })

  test('can be undone by a stop even if the guest’s agent never answers', async () => {
    const desired = makeDesiredRun()
    await playVm(fixture, desired)
    const next = await open()
    await next.stop(desired.run_id, 100)
    assert.deepEqual((await find(next, desired.run_id))?.outcome, { kind: 'stopped' })
    await assert.rejects(next.openChannel(desired.run_id), /is not running/)
    await next.remove(desired.run_id)
    await next.discard(desired.sandbox_id)
  })

  test('that was interrupted by the death of its worker is undone by the next worker', async () => {
    const desired = makeDesiredRun()
    const vm = await playVm(fixture, desired, { started: null })
    const next = await open()
    await waitUntil(() => vm.signalCode !== null)
    assert.deepEqual(await next.list(), [])
    await next.discard(desired.sandbox_id)
  })
})

/** Imitates a live run of an earlier worker: its record, its disk's record, and a process with the runtime's command line. */
async function playVm(
  fixture: MicroVmFixture,
  { run_id, sandbox_id, org_id }: DesiredRun,
  more: Partial<VmRunRecord> = {},
): Promise<ReturnType<typeof spawn>> {
  const { name } = vmPaths(fixture.home, sandbox_id)
  const env = { MSB_HOME: fixture.home }
  const vm = spawn(process.execPath, ['-e', 'setInterval(() => {}, 1e6)', 'sandbox', '--name', name], {
    env,
    stdio: 'ignore',
  })
  await once(vm, 'spawn')
  await waitUntil(() => readFileSync(`/proc/${String(vm.pid)}/cmdline`, 'utf8').includes(name))
  const mark = identifyProcess(vm.pid ?? 0)
  if (mark === null) throw new Error('the process is gone')
  const kept = {
    image: { digest: 'sha256:0', config: { env: [], entrypoint: null, cmd: null, workdir: null, user: null } },
  }
  await (await openStoredSandboxes(fixture.stateDir)).write(sandbox_id, { ...kept, disk_size_mib: 512 })
  const records = await openVmRunRecords(fixture.stateDir)
  records.write({
    version: 1,
    run_id,
    sandbox_id,
    org_id,
    boot_id: await readBootId(),
    idle_timeout_secs: null,
    facts: { isolation: 'played' },
    started: { vm: mark, watcher: null, has_workload: false },
    is_stop_requested: false,
    outcome: null,
    is_released: false,
    ...more,
  })
  return vm
}

/** The ids of all processes. */
function processIds(): readonly string[] {
  return readdirSync('/proc').filter((name) => /^\d+$/.test(name))
}

function textsOfProcess(pid: string): readonly string[] {
  return ['cmdline', 'environ'].map((file) => readOrEmpty(`/proc/${pid}/${file}`))
}

function readOrEmpty(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return '' // the process has ended
  }
}

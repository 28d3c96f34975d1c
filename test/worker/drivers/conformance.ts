import assert from 'node:assert/strict'
import { describe, test, type TestContext } from 'node:test'
import type { VolumeFiles } from '../../../src/contract/volumes/volume-protocol.ts'
import type { ObservedRun, DesiredRun } from '../../../src/contract/workers/worker-protocol.ts'
import type { RunId, SandboxId } from '../../../src/domain/ids.ts'
import { ISOLATION_LEVEL_FACT, isolationOf } from '../../../src/domain/isolation.ts'
import type { Mount, SandboxSpec } from '../../../src/domain/spec/spec.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import type { Driver } from '../../../src/worker/drivers/driver.ts'
import { StartError } from '../../../src/worker/start-error.ts'
import { bind, named, tmpfs, desiredRunWithMounts } from '../../support/mounts.ts'
import { TIMEOUT_FACTOR } from '../../support/timeout-factor.ts'

/** A driver under test, and what the suite needs to know about it. */
export type ConformanceSubject = {
  readonly name: string
  /** Why the driver can't be tested on this machine. Null if it can. */
  readonly whyNot: string | null
  /** Opens a driver over the same machine each time. A second call simulates a restart of the worker. */
  open(): Promise<Driver>
  makeRun(spec?: Partial<SandboxSpec>, sandbox?: SandboxId): DesiredRun
  /** Three specs: the start fails because of the image, the start takes at least 10 s, and the workload ends without a stop. */
  readonly specs: {
    readonly failing: Partial<SandboxSpec>
    readonly slow: Partial<SandboxSpec>
    readonly endsWith7: Partial<SandboxSpec>
  }
  /** Runs a shell script in a sandbox and returns its output; null for a driver that runs nothing. */
  readonly run: ((run: RunId, script: string) => Promise<string>) | null
  /** Opens the files of the runs' default volume; null for a driver that has no volumes, whatever it offers. */
  readonly openDefaultVolume: ((driver: Driver) => Promise<Pick<VolumeFiles, 'stat' | 'exists'>>) | null
  /** Lists the driver's mounts, namespaces and cgroups on the machine that belong to no live run. */
  leftovers(): Promise<readonly string[]>
}

const NEVER = new AbortController().signal

/** Tests the guarantees of `Driver`, which every driver must keep. */
export function describeConformance(subject: ConformanceSubject): void {
  const promise = (sentence: string, body: (driver: Driver, t: TestContext) => Promise<void>): void => {
    test(sentence, { timeout: 60_000 * TIMEOUT_FACTOR }, async (t) => {
      if (subject.whyNot !== null) {
        t.skip(subject.whyNot)
        return
      }
      const driver = await subject.open()
      try {
        await body(driver, t)
      } finally {
        await driver.close()
        await clear(subject)
      }
      assert.deepEqual(await subject.leftovers(), [])
    })
  }

  describe(`the ${subject.name} driver`, () => {
    promise('reports its isolation and its capacity', async (driver) => {
      const { report, capacity } = await driver.probe()
      assert.equal(report.name, driver.name)
      assert.notEqual(report.isolation, '')
      assert.ok(capacity.vcpus > 0 && capacity.memory_mib > 0 && (capacity.disk_mib ?? 1) > 0)
    })

    promise('starts a run once, however often it is asked', async (driver) => {
      const desired = subject.makeRun()
      await Promise.all([driver.start(desired, NEVER), driver.start(desired, NEVER)])
      await driver.start(desired, NEVER)
      const seen = await driver.list()
      assert.equal(seen.length, 1)
      assert.equal(seen[0]?.phase, 'running')
      assert.equal(seen[0].run_id, desired.run_id)
      assert.notEqual(seen[0].facts?.['isolation'], undefined)
      const level = isolationOf((await driver.probe()).report.abilities)
      assert.equal(seen[0].facts?.[ISOLATION_LEVEL_FACT] ?? null, level)
    })

    promise('stops a run once, however often it is asked, and keeps its end', async (driver) => {
      const desired = subject.makeRun()
      await driver.start(desired, NEVER)
      await Promise.all([driver.stop(desired.run_id, 2000), driver.stop(desired.run_id, 2000)])
      await driver.stop(desired.run_id, 0)
      assert.deepEqual((await find(driver, desired.run_id))?.outcome, { kind: 'stopped' })
      assert.deepEqual(await subject.leftovers(), [])
    })

    promise('releases a stopped run even while runs that were started later go on', async (driver) => {
      const [first, second] = [subject.makeRun(), subject.makeRun()]
      await driver.start(first, NEVER)
      const before = (await subject.leftovers()).length
      await driver.start(second, NEVER)
      await driver.stop(first.run_id, 0)
      assert.equal((await subject.leftovers()).length, before)
      assert.equal((await find(driver, second.run_id))?.phase, 'running')
    })

    promise('refuses to start a run that has ended', async (driver) => {
      const desired = subject.makeRun()
      await driver.start(desired, NEVER)
      await driver.stop(desired.run_id, 0)
      await assert.rejects(driver.start(desired, NEVER), StartError)
    })

    promise('treats unknown runs as ended and unknown sandboxes as deleted', async (driver) => {
      const { run_id, sandbox_id } = subject.makeRun()
      await driver.stop(run_id, 0)
      await driver.remove(run_id)
      await driver.discard(sandbox_id)
      await assert.rejects(driver.openChannel(run_id))
      assert.deepEqual(await driver.list(), [])
    })

    promise('adopts its runs after the worker was restarted', async (driver) => {
      const [running, stopped] = [subject.makeRun(), subject.makeRun()]
      await driver.start(running, NEVER)
      await driver.start(stopped, NEVER)
      await driver.stop(stopped.run_id, 0)
      await driver.close()
      const next = await subject.open()
      try {
        assert.equal((await find(next, running.run_id))?.phase, 'running')
        assert.deepEqual((await find(next, stopped.run_id))?.outcome, { kind: 'stopped' })
        await next.start(running, NEVER)
        await next.stop(running.run_id, 2000)
        assert.deepEqual((await find(next, running.run_id))?.outcome, { kind: 'stopped' })
      } finally {
        await next.close()
      }
    })

    promise('deletes a removed run and keeps its sandbox until it is discarded', async (driver) => {
      const desired = subject.makeRun()
      await driver.start(desired, NEVER)
      await assert.rejects(driver.discard(desired.sandbox_id))
      await driver.stop(desired.run_id, 0)
      await assert.rejects(driver.discard(desired.sandbox_id))
      await driver.remove(desired.run_id)
      assert.deepEqual(await driver.list(), [])
      assert.deepEqual(await driver.listStored(), [desired.sandbox_id])
      await driver.discard(desired.sandbox_id)
      assert.deepEqual(await driver.listStored(), [])
    })

    promise('removes a run that still runs', async (driver) => {
      const desired = subject.makeRun()
      await driver.start(desired, NEVER)
      await driver.remove(desired.run_id)
      assert.deepEqual(await driver.list(), [])
      assert.deepEqual(await subject.leftovers(), [])
    })

    promise('records a failed start with its reason, and leaves nothing else of it', async (driver) => {
      const desired = subject.makeRun(subject.specs.failing)
      await assert.rejects(
        driver.start(desired, NEVER),
        (error) => error instanceof StartError && error.reason === 'image',
      )
      const outcome = (await find(driver, desired.run_id))?.outcome
      assert.ok(outcome?.kind === 'start_failed' && outcome.reason === 'image')
      assert.deepEqual(await subject.leftovers(), [])
      assert.deepEqual(await driver.listStored(), [])
    })

    promise('cancels a start when its signal aborts, and cleans up', async (driver) => {
      const desired = subject.makeRun(subject.specs.slow)
      const abort = new AbortController()
      const started = driver.start(desired, abort.signal)
      await until(async () => (await find(driver, desired.run_id))?.phase === 'starting')
      abort.abort(new Error('test'))
      await assert.rejects(started, (error) => error instanceof StartError && error.reason === 'cancelled')
      assert.deepEqual(await subject.leftovers(), [])
    })

    promise('cancels a start when the run is stopped meanwhile', async (driver) => {
      const desired = subject.makeRun(subject.specs.slow)
      const started = driver.start(desired, NEVER)
      const rejected = assert.rejects(started, (error) => error instanceof StartError && error.reason === 'cancelled')
      await until(async () => (await find(driver, desired.run_id))?.phase === 'starting')
      await driver.stop(desired.run_id, 0)
      await rejected
      assert.equal((await find(driver, desired.run_id))?.phase, 'ended')
      assert.deepEqual(await subject.leftovers(), [])
    })

    promise('reports an end within a second, with its outcome', async (driver) => {
      const desired = subject.makeRun(subject.specs.endsWith7)
      let calls = 0
      const unwatch = driver.watch(() => {
        calls += 1
      })
      await driver.start(desired, NEVER)
      await until(async () => (await find(driver, desired.run_id))?.phase === 'ended')
      const endedAtMs = systemClock.monotonicMs()
      const before = calls
      await until(() => Promise.resolve(calls > before || calls > 1))
      unwatch()
      assert.ok(systemClock.monotonicMs() - endedAtMs < 1000 * TIMEOUT_FACTOR)
      assert.deepEqual((await find(driver, desired.run_id))?.outcome, { kind: 'exited', code: 7 })
      await until(async () => (await subject.leftovers()).length === 0)
    })

    promise('reports a sandbox that was idle for its whole timeout', async (driver) => {
      const lifecycle = { ephemeral: false, idle_timeout_secs: TIMEOUT_FACTOR, max_duration_secs: null }
      const desired = subject.makeRun({ lifecycle })
      const fromMs = systemClock.monotonicMs()
      await driver.start(desired, NEVER)
      await until(async () => (await find(driver, desired.run_id))?.is_idle_expired === true)
      assert.ok(systemClock.monotonicMs() - fromMs >= 1000 * TIMEOUT_FACTOR)
    })

    const { run, openDefaultVolume } = subject
    if (openDefaultVolume !== null) describeBindMounts({ ...subject, openDefaultVolume }, promise)
    if (run !== null) describeMounts({ ...subject, run }, promise)
  })
}

type Promised = (sentence: string, body: (driver: Driver, t: TestContext) => Promise<void>) => void
type SubjectWithVolumes = ConformanceSubject & {
  readonly openDefaultVolume: NonNullable<ConformanceSubject['openDefaultVolume']>
}
type RunningSubject = ConformanceSubject & { readonly run: NonNullable<ConformanceSubject['run']> }

/** Tests the guarantees about bind mounts, for drivers that have them. Those whose sandboxes have files must also show them. */
function describeBindMounts(subject: SubjectWithVolumes, promise: Promised): void {
  const { run, openDefaultVolume } = subject
  const withBind = (host: string): DesiredRun => subject.makeRun({ mounts: [bind(host, '/mnt')] })
  const ifOffered = (sentence: string, body: (driver: Driver) => Promise<void>): void => {
    promise(sentence, async (driver, t) => {
      if ((await driver.probe()).report.abilities.includes('bind_mounts')) await body(driver)
      else t.skip('the driver does not offer bind_mounts')
    })
  }

  ifOffered('makes the folder of a bind mount in the default volume, where its files stay', async (driver) => {
    const [first, second] = [withBind('/made/below'), withBind('made/./below')]
    const files = await openDefaultVolume(driver)
    await driver.start(first, NEVER)
    if (run !== null) await run(first.run_id, 'echo kept >/mnt/file')
    await driver.remove(first.run_id)
    await driver.start(second, NEVER)
    if (run !== null) assert.equal(await run(second.run_id, 'cat /mnt/file'), 'kept\n')
    assert.equal((await files.stat('/made/below')).kind, 'directory')
  })

  ifOffered(
    'refuses a bind mount that is not of the default volume, and leaves nothing of the start',
    async (driver) => {
      const files = await openDefaultVolume(driver)
      const refused = async (desired: DesiredRun): Promise<void> => {
        await assert.rejects(
          driver.start(desired, NEVER),
          (error) => error instanceof StartError && error.reason === 'mount',
        )
      }
      await refused(withBind('/never/../../out'))
      await refused({ ...withBind('/never'), volumes: [] })
      assert.deepEqual(await driver.listStored(), [])
      assert.equal(await files.exists('/never'), false)
      assert.equal(await files.exists('/out'), false)
    },
  )
}

/** Tests the guarantees about mounts, for drivers whose sandboxes have files. */
function describeMounts(subject: RunningSubject, promise: Promised): void {
  const { run } = subject
  const withMounts = (mounts: readonly Mount[], sandbox?: SandboxId): DesiredRun => ({
    ...desiredRunWithMounts(mounts),
    ...(sandbox === undefined ? {} : { sandbox_id: sandbox }),
    run_id: subject.makeRun().run_id,
  })

  promise('keeps files on a volume after the sandbox that wrote them was stopped and deleted', async (driver) => {
    const first = withMounts([named('kept', '/data')])
    await driver.start(first, NEVER)
    await run(first.run_id, 'echo one >/data/file')
    await driver.remove(first.run_id)
    const second = withMounts([named('kept', '/data')], first.sandbox_id)
    await driver.start(second, NEVER)
    assert.equal(await run(second.run_id, 'cat /data/file; rm /data/file; echo two >/data/other'), 'one\n')
    await driver.remove(second.run_id)
    await driver.discard(second.sandbox_id)
    const stranger = withMounts([named('kept', '/elsewhere')])
    await driver.start(stranger, NEVER)
    assert.equal(await run(stranger.run_id, 'ls /elsewhere; cat /elsewhere/other'), 'other\ntwo\n')
  })

  promise('shows a volume to all sandboxes that mount it at the same time, and to no others', async (driver) => {
    const [one, two] = [withMounts([named('shared', '/data')]), withMounts([named('shared', '/data')])]
    const other = withMounts([named('another', '/data')])
    await Promise.all([one, two, other].map((each) => driver.start(each, NEVER)))
    await run(one.run_id, 'echo one >/data/file')
    await run(two.run_id, 'echo two >>/data/file')
    assert.equal(await run(one.run_id, 'cat /data/file'), 'one\ntwo\n')
    assert.equal(await run(other.run_id, 'ls /data'), '')
  })

  promise('refuses writes to a readonly mount', async (driver) => {
    const box = withMounts([named('frozen', '/data', { readonly: true })])
    await driver.start(box, NEVER)
    assert.equal(await run(box.run_id, 'touch /data/x 2>/dev/null || echo refused; ls /data'), 'refused\n')
  })

  promise('mounts parents before the mounts in them', async (driver) => {
    const box = withMounts([named('outer', '/data'), tmpfs('/data/mem'), named('inner', '/data/mem/inner')])
    await driver.start(box, NEVER)
    await run(box.run_id, 'echo 1 >/data/a; echo 2 >/data/mem/b; echo 3 >/data/mem/inner/c')
    assert.equal(await run(box.run_id, 'cat /data/a /data/mem/b /data/mem/inner/c'), '1\n2\n3\n')
    await driver.remove(box.run_id)
    const next = withMounts([named('outer', '/o'), named('inner', '/i')])
    await driver.start(next, NEVER)
    assert.equal(await run(next.run_id, 'cat /o/a /i/c; ls /o/mem'), '1\n3\n')
  })

  promise('refuses to mount a volume that the run was not given, and leaves nothing of the start', async (driver) => {
    const box = { ...withMounts([named('absent', '/data')]), volumes: [] }
    const isMount = (error: unknown): boolean => error instanceof StartError && error.reason === 'mount'
    await assert.rejects(driver.start(box, NEVER), isMount)
    assert.deepEqual(await driver.listStored(), [])
  })
}

async function clear(subject: ConformanceSubject): Promise<void> {
  const driver = await subject.open()
  for (const run of await driver.list()) await driver.remove(run.run_id)
  for (const sandbox of await driver.listStored()) await driver.discard(sandbox)
  await driver.close()
}

/** Finds a run in a driver's list. */
export async function find(driver: Driver, run: RunId): Promise<ObservedRun | undefined> {
  return (await driver.list()).find((seen) => seen.run_id === run)
}

/** Waits until a condition is true. Rejects after 10 s times TIMEOUT_FACTOR. */
export async function until(holds: () => Promise<boolean>): Promise<void> {
  const deadlineMs = systemClock.monotonicMs() + 10_000 * TIMEOUT_FACTOR
  while (!(await holds())) {
    if (systemClock.monotonicMs() > deadlineMs) throw new Error('the condition did not hold within 10 s')
    await systemClock.sleep(10)
  }
}

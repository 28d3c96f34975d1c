import assert from 'node:assert/strict'
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { asId, type RunId } from '../../../../src/domain/ids.ts'
import type { Mount } from '../../../../src/domain/spec/spec.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import { localCommands } from '../../../../src/lib/run-command.ts'
import { DEFAULT_OCI_SETTINGS } from '../../../../src/worker/drivers/oci/context.ts'
import { makeLauncher, type Launched } from '../../../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { makeServedMounts } from '../../../../src/worker/drivers/oci/run/mount-disk-image.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { endImageServers } from '../../../../src/worker/drivers/oci/run/end-image-servers.ts'
import type { OciRunRecord } from '../../../../src/worker/drivers/oci/run/run-records.ts'
import type { Runtime } from '../../../../src/worker/drivers/oci/run/runtime/runtime.ts'
import { imageServersOf, makeExt4, whyNoDiskImages } from '../../../support/disk-images.ts'
import { makeOciFixture } from '../../../support/oci-driver.ts'
import { identifyProcess } from '../../../../src/worker/processes/process-identity.ts'
import { systemClock, type Clock } from '../../../../src/lib/clock.ts'
import { desiredRunWithMounts, diskImage, tmpfs } from '../../../support/mounts.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'

/** How much faster than the machine's the clock of a driver is, so that its time limits pass sooner. */
const SPEED = 10
const hasImages = { skip: whyNoDiskImages() ?? false, timeout: 60_000 }
const RUNTIME: Runtime = { name: 'crun', version: 'crun 1', command: ['crun'], isolation: '', level: 'container' }
const STARTED: OciRunRecord['started'] = { uid_shift: 0, runtime: RUNTIME, shim: null, init: null }

/** Waits for servers of which `pids` lists one fewer at each call. Returns what was logged, and the time that passed. */
async function end(
  mounts: readonly Mount[],
  pids: () => readonly number[],
  started: OciRunRecord['started'] = STARTED,
): Promise<[string[], number]> {
  const logged: string[] = []
  let nowMs = 0
  const clock = {
    now: () => new Date(0),
    monotonicMs: () => nowMs,
    sleep: (ms: number) => {
      nowMs += ms
      return Promise.resolve()
    },
  }
  const ignore = (): void => undefined
  const warn = (_fields: object, message: string): void => void logged.push(message)
  const log = { debug: ignore, info: ignore, warn, error: ignore, child: () => log }
  const cgroups = { commandPids: () => Promise.resolve(pids()) }
  const run = { run_id: asId<RunId>('run'), spec: { ...DEFAULT_SPEC_FOR_TESTS, mounts }, started }
  await endImageServers({ cgroups, clock, commands: localCommands, log, mountDir: '/nonexistent' }, run)
  return [logged, nowMs]
}

test('the end of a run waits until the servers of its images have written everything', async () => {
  let left = 3
  const [logged, passedMs] = await end([diskImage('d.img', '/disk')], () => Array.from({ length: left-- }, () => 1))
  assert.deepEqual(logged, [])
  assert.ok(passedMs > 0 && passedMs < 100, String(passedMs))
})

test('a server that does not end delays the end of its run by ten seconds at most, and the log says so', async () => {
  const [logged, passedMs] = await end([diskImage('d.img', '/disk')], () => [1])
  assert.match(logged.join(), /^the server of a disk image does not end; it is killed/)
  assert.ok(passedMs >= 10_000 && passedMs < 11_000, String(passedMs))
})

test('a start that failed waits only briefly for a server, which then has nothing to write', async () => {
  const [logged, passedMs] = await end([diskImage('d.img', '/disk')], () => [1], null)
  assert.deepEqual(logged, [])
  assert.ok(passedMs < 1000, String(passedMs))
})

test('a run without disk images waits for nothing', async () => {
  assert.deepEqual(await end([tmpfs('/tmp')], () => [1]), [[], 0])
})

test('a start mounts no further image after a minute', async () => {
  let nowMs = 0
  const never = (): never => assert.fail('another image was mounted')
  const { mountDiskImage: mounter } = makeServedMounts(
    {
      cgroups: { createForCommands: never },
      clock: { monotonicMs: () => nowMs },
      settings: DEFAULT_OCI_SETTINGS,
      launcher: { start: never },
      records: { folderOf: never },
      runtime: RUNTIME,
      users: { of: never },
    },
    makeDesiredRun(),
    new AbortController().signal,
  )
  nowMs = 60_001
  await assert.rejects(mounter(diskImage('d.img', '/disk'), '/source', '/pin'), /longer than a minute/)
})

test('a start that is cancelled ends what mounts its image', async () => {
  const [dir, pins] = ['image', 'pins'].map((name) => mkdtempSync(join(tmpdir(), `sandyard-${name}-`))) as [
    string,
    string,
  ]
  const launcher = makeLauncher(makeLog('silent'))
  const abort = new AbortController()
  const started: Launched[] = []
  const { mountDiskImage: mounter } = makeServedMounts(
    {
      cgroups: { createForCommands: () => [] },
      clock: systemClock,
      settings: DEFAULT_OCI_SETTINGS,
      launcher: {
        async start(_command, files) {
          const launched = await launcher.start(['sleep', '60'], files)
          started.push(launched)
          abort.abort(new Error('cancelled by the test'))
          return launched
        },
      },
      records: { folderOf: () => dir },
      runtime: RUNTIME,
      users: { of: () => ({ range_first: 1, uid_shift: 1, namespacePath: '/n', mountMapPath: null }) },
    },
    makeDesiredRun(),
    abort.signal,
  )
  try {
    await assert.rejects(mounter(diskImage('d.img', '/disk'), '/source', join(pins, '0')), /cancelled by the test/)
    assert.deepEqual(
      started.map((launched) => launched.isRunning()),
      [false],
    )
    assert.deepEqual(readdirSync(dir), [])
  } finally {
    launcher.close()
    for (const one of [dir, pins]) rmSync(one, { recursive: true })
  }
})

test(
  'a server that never answers delays the end of its sandbox, whose processes wait for it, but does not prevent it',
  hasImages,
  async () => {
    const fixture = await makeOciFixture()
    const fast: Clock = {
      now: () => systemClock.now(),
      monotonicMs: () => systemClock.monotonicMs() * SPEED,
      sleep: (ms, signal) => systemClock.sleep(ms / SPEED, signal),
    }
    const driver = await fixture.open({ readyAhead: 0 }, { clock: fast })
    try {
      await makeExt4(fixture, 'd.img', { greeting: 'hello\n' })
      const run = desiredRunWithMounts([diskImage('d.img', '/disk')])
      await driver.start(run, new AbortController().signal)
      const [server = 0] = imageServersOf(run)
      const busy =
        'while :; do dd if=/dev/zero of=/disk/big bs=1M count=8; done </dev/null >/dev/null 2>&1 & echo begun'
      assert.equal((await fixture.exec(run.run_id, ['sh', '-c', busy])).stdout, 'begun\n')
      assert.equal((await fixture.exec(run.run_id, ['sh', '-c', 'until test -s /disk/big; do :; done'])).code, 0)
      process.kill(server, 'SIGSTOP') // in the middle of a request
      await driver.remove(run.run_id)
      assert.deepEqual(await fixture.leftovers(), [])
      assert.equal(identifyProcess(server), null)
    } finally {
      await driver.close()
      await fixture.remove()
    }
  },
)

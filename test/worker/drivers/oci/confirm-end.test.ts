import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { asId, type RunId } from '../../../../src/domain/ids.ts'
import { systemClock } from '../../../../src/lib/clock.ts'
import type { Log } from '../../../../src/lib/log.ts'
import { confirmEnd } from '../../../../src/worker/drivers/oci/run/confirm-end.ts'
import type { Cgroups } from '../../../../src/worker/drivers/oci/cgroups/cgroups.ts'
import { describeProcess } from '../../../../src/worker/processes/process-identity.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { folderHash } from '../../../support/folder-hash.ts'
import { makeOciFixture, whyNoOci } from '../../../support/oci-driver.ts'
import { waitUntil } from '../../../support/wait.ts'

/** More than the kernel's largest process id, so that no process has it. */
const NO_PROCESS = 2 ** 22 + 1

test('a run with a process that survives SIGKILL stays live, and the log names the process', async () => {
  const logged: object[] = []
  const write = (fields: object): void => {
    logged.push(fields)
  }
  const log: Log = { debug: write, info: write, warn: write, error: write, child: () => log }
  let left: readonly number[] = [NO_PROCESS]
  const cgroups = { pids: () => Promise.resolve(left) } as unknown as Cgroups // only `pids` is used
  const run_id = asId<RunId>('run')
  const started = { uid_shift: 0, runtime: null as never, shim: null, init: null }
  const confirm = (is_stop_requested: boolean) =>
    confirmEnd(
      { cgroups, clock: systemClock, log },
      { run_id, started, is_stop_requested, outcome: null },
      { phase: 'ended', outcome: { kind: 'stopped' } },
    )
  assert.deepEqual(await confirm(false), { phase: 'running' })
  assert.deepEqual(await confirm(true), { phase: 'stopping' })
  assert.deepEqual(logged[0], { run_id, processes: [`${String(NO_PROCESS)} (gone meanwhile)`] })
  assert.match(describeProcess(process.pid), /^\d+ \(state [RS]( in \w+)?\)$/)
  left = []
  assert.equal((await confirm(true)).phase, 'ended')
})

test('a run ends only after every process in its cgroup was killed', { skip: whyNoOci() ?? false }, async () => {
  const fixture = await makeOciFixture()
  const driver = await fixture.open()
  const run = makeDesiredRun()
  const survivor = spawn('sleep', ['600'])
  const survived = once(survivor, 'exit')
  try {
    await driver.start(run, new AbortController().signal)
    ;(await driver.openChannel(run.run_id)).destroy()
    const base = existsSync('/sys/fs/cgroup/pids') ? '/sys/fs/cgroup/pids' : '/sys/fs/cgroup'
    const group = join(base, 'sandyard', folderHash(join(fixture.dir, 'state')), run.run_id, 'left')
    mkdirSync(group)
    writeFileSync(join(group, 'cgroup.procs'), String(survivor.pid))
    process.kill(fixture.container(run.run_id).initPid, 'SIGKILL')
    await waitUntil(async () => (await driver.list())[0]?.phase === 'ended')
    await survived
    assert.equal(survivor.signalCode, 'SIGKILL')
  } finally {
    survivor.kill('SIGKILL')
    await driver.remove(run.run_id)
    await driver.close()
    assert.deepEqual(await fixture.leftovers(), [])
    await fixture.remove()
  }
})

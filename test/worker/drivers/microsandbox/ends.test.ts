import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import type { StartFailure } from '../../../../src/contract/workers/worker-protocol.ts'
import { asId, type RunId, type SandboxId } from '../../../../src/domain/ids.ts'
import { toStartError } from '../../../../src/worker/drivers/microsandbox/vm-failures.ts'
import { makeGuestHeartbeats } from '../../../../src/worker/drivers/microsandbox/guest-heartbeats.ts'
import { vmPaths } from '../../../../src/worker/drivers/microsandbox/installation.ts'
import { deriveVmPhase, type VmEvidence } from '../../../../src/worker/drivers/microsandbox/vm-phase.ts'
import type { ObservedPhase } from '../../../../src/worker/drivers/shared/run-supervisor.ts'
import type { VmRunRecord } from '../../../../src/worker/drivers/microsandbox/vm-records.ts'
import { MACHINE_RESTARTED } from '../../../../src/worker/drivers/shared/run-records.ts'
import { makeTestClock } from '../../../support/test-clock.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'

let dir: string
before(() => {
  dir = mkdtempSync(join(tmpdir(), 'sandyard-vm-ends-'))
})
after(() => {
  rmSync(dir, { recursive: true, force: true })
})

const { run_id, sandbox_id, org_id } = makeDesiredRun()
const RECORD: VmRunRecord = {
  version: 1,
  run_id,
  sandbox_id,
  org_id,
  boot_id: 'this',
  idle_timeout_secs: null,
  facts: {},
  started: { vm: { pid: 1, startTicks: 1 }, watcher: null, has_workload: false },
  is_stop_requested: false,
  outcome: null,
  is_released: false,
}
const ALIVE: VmEvidence = {
  bootId: 'this',
  isBeingStarted: false,
  isVmAlive: true,
  isWatched: true,
  end: null,
  status: null,
  hasRunOutOfMemory: false,
}
const GONE: VmEvidence = { ...ALIVE, isVmAlive: false }
const lost = (message: string): ObservedPhase => ({ phase: 'ended', outcome: { kind: 'lost', message } })

const CASES: readonly (readonly [string, Partial<VmRunRecord>, VmEvidence, ObservedPhase])[] = [
  ['is running while its VM runs', {}, ALIVE, { phase: 'running' }],
  [
    'is starting while this worker starts it',
    { started: null },
    { ...GONE, isBeingStarted: true },
    { phase: 'starting' },
  ],
  [
    'was interrupted during its start if no process is starting it',
    { started: null },
    GONE,
    lost('the worker ended while the sandbox was starting'),
  ],
  ['is stopping until its VM is gone', { is_stop_requested: true }, ALIVE, { phase: 'stopping' }],
  [
    'was stopped once its VM is gone',
    { is_stop_requested: true },
    GONE,
    { phase: 'ended', outcome: { kind: 'stopped' } },
  ],
  [
    'was stopped, whatever code its workload then gave',
    { is_stop_requested: true },
    { ...GONE, end: { kind: 'exited', code: 143 } },
    { phase: 'ended', outcome: { kind: 'stopped' } },
  ],
  [
    'ended with its workload',
    {},
    { ...ALIVE, end: { kind: 'exited', code: 7 } },
    { phase: 'ended', outcome: { kind: 'exited', code: 7 } },
  ],
  [
    'was ended by a signal that the agent does not name',
    {},
    { ...ALIVE, end: { kind: 'signalled' } },
    { phase: 'ended', outcome: { kind: 'signalled', signal: 'a signal' } },
  ],
  [
    'ran out of memory when the guest kernel says so',
    {},
    { ...ALIVE, end: { kind: 'signalled' }, hasRunOutOfMemory: true },
    { phase: 'ended', outcome: { kind: 'out_of_memory' } },
  ],
  [
    'had a workload that does not exist',
    {},
    { ...ALIVE, end: { kind: 'failed', message: 'no such file' } },
    lost('the workload could not be started: no such file'),
  ],
  [
    'ended because its guest shut down',
    {},
    { ...GONE, status: 'stopped' },
    { phase: 'ended', outcome: { kind: 'exited', code: 0 } },
  ],
  ['died', {}, { ...GONE, status: 'crashed' }, lost('the virtual machine ended unexpectedly')],
  [
    'died with its agent in the middle of a workload',
    {},
    { ...GONE, end: { kind: 'lost' }, status: 'crashed' },
    lost('the virtual machine ended unexpectedly'),
  ],
  [
    'continues while its VM does, even if the agent has disconnected',
    {},
    { ...ALIVE, end: { kind: 'lost' } },
    { phase: 'running' },
  ],
  [
    'is lost if the process that waited for its workload is gone',
    {},
    { ...ALIVE, isWatched: false },
    lost('the process that waits for the workload was killed'),
  ],
  ['ended with the machine it ran on', {}, { ...GONE, bootId: 'next' }, { phase: 'ended', outcome: MACHINE_RESTARTED }],
  [
    'ended by a signal with the machine it ran on',
    {},
    { ...GONE, bootId: 'next', end: { kind: 'signalled' } },
    { phase: 'ended', outcome: MACHINE_RESTARTED },
  ],
  [
    'stays as it was recorded',
    { outcome: { kind: 'exited', code: 3 } },
    ALIVE,
    { phase: 'ended', outcome: { kind: 'exited', code: 3 } },
  ],
]

for (const [sentence, record, evidence, phase] of CASES) {
  test(`a microVM's run ${sentence}`, () => {
    assert.deepEqual(deriveVmPhase({ ...RECORD, ...record }, evidence), phase)
  })
}

test('each error of the SDK becomes a start failure with a reason and a message that names no path of the machine', async () => {
  const kinds: Readonly<Record<string, StartFailure>> = {
    invalidConfig: 'config',
    imageNotFound: 'image',
    image: 'image',
    patchFailed: 'patch',
    io: 'host',
    database: 'host',
    libkrunfwNotFound: 'host',
    runtime: 'runtime',
    unheardOf: 'runtime',
  }
  const paths = vmPaths(dir, sandbox_id)
  for (const [code, reason] of Object.entries(kinds)) {
    for (const path of ['home/sandboxes/x', 'runs/x/copies/0', 'mounts/x']) {
      const message = `bad: ${join(dir, path)}`
      const failure = await toStartError({ kind: 'failed', code, message }, paths, dir)
      assert.equal(failure.reason, reason)
      assert.ok(!failure.message.includes(path))
      assert.ok(String(failure.cause).includes(path))
    }
  }
  const workdir = { kind: 'failed', code: 'invalidConfig', message: 'workdir does not exist in guest: /x' } as const
  assert.match((await toStartError(workdir, paths, dir)).message, /workdir does not exist in guest: \/x/)
})

test('a virtual machine that did not boot fails for the stage that the runtime stored in its file', async () => {
  const paths = vmPaths(dir, asId<SandboxId>('booting'))
  mkdirSync(paths.logs, { recursive: true })
  const failed = { kind: 'failed', code: 'BootStart', message: 'failed to start' } as const
  const stages = {
    mount: 'mount',
    network: 'network',
    image: 'image',
    config: 'config',
    build_vm: 'runtime',
    other: 'runtime',
  }
  for (const [stage, reason] of Object.entries(stages)) {
    // The format in which the genuine runtime writes a boot error (boot_error.rs, 0.6.14). Without virtualization a
    // boot fails in no other phase.
    const written = { t: '2026-11-21T12:00:00Z', stage, errno: null, message: 'x' }
    writeFileSync(join(paths.logs, 'boot-error.json'), JSON.stringify(written, null, 2))
    assert.equal((await toStartError(failed, paths, dir)).reason, reason)
  }
})

test('a guest is idle once its heartbeats showed no use for the whole timeout, and never while a client’s process runs', async () => {
  const clock = makeTestClock()
  const heartbeats = makeGuestHeartbeats(clock)
  const run = asId<RunId>('run')
  const beat = (activity_seq: number, active_exec_sessions: number): void => {
    writeFileSync(join(dir, 'heartbeat.json'), JSON.stringify({ heartbeat_seq: 1, activity_seq, active_exec_sessions }))
  }
  const isIdle = (): Promise<boolean> => heartbeats.isIdle(run, dir, 10)
  beat(1, 0)
  assert.equal(await isIdle(), false)
  clock.advance(9_999)
  assert.equal(await isIdle(), false)
  clock.advance(1)
  assert.equal(await isIdle(), true)
  beat(2, 0)
  assert.equal(await isIdle(), false)
  clock.advance(10_000)
  beat(2, 1)
  assert.equal(await isIdle(), false)
  clock.advance(60_000)
  assert.equal(await isIdle(), false)
  beat(2, 0)
  assert.equal(await isIdle(), false)
  clock.advance(10_000)
  assert.equal(await isIdle(), true)
})

test('a guest can’t redirect the reading of its heartbeat', async () => {
  const heartbeats = makeGuestHeartbeats(makeTestClock())
  const secret = join(dir, 'secret.json')
  writeFileSync(secret, JSON.stringify({ activity_seq: 1, active_exec_sessions: 0 }))
  unlinkSync(join(dir, 'heartbeat.json'))
  symlinkSync(secret, join(dir, 'heartbeat.json'))
  for (let look = 0; look < 3; look++) assert.equal(await heartbeats.isIdle(asId<RunId>('other'), dir, 0), false)
  assert.notEqual(readFileSync(secret, 'utf8'), '')
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { asId, type OrgId, type RunId, type SandboxId } from '../../../../src/domain/ids.ts'
import { deriveRunPhase, type RunEvidence } from '../../../../src/worker/drivers/oci/run/run-phase.ts'
import { MACHINE_RESTARTED } from '../../../../src/worker/drivers/shared/run-records.ts'
import type { OciRunRecord } from '../../../../src/worker/drivers/oci/run/run-records.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'

const started: OciRunRecord['started'] = {
  uid_shift: 0,
  runtime: { name: 'crun', version: 'crun 1', command: ['crun'], isolation: '', level: 'container' },
  shim: { pid: 1, startTicks: 1 },
  init: { pid: 2, startTicks: 2 },
}
const record: OciRunRecord = {
  version: 1,
  run_id: asId<RunId>('run'),
  sandbox_id: asId<SandboxId>('sandbox'),
  org_id: asId<OrgId>('org'),
  boot_id: 'boot',
  spec: DEFAULT_SPEC_FOR_TESTS,
  image: null,
  facts: {},
  started,
  is_stop_requested: false,
  outcome: null,
  is_released: false,
}
const alive: RunEvidence = {
  bootId: 'boot',
  exit: null,
  isShimAlive: true,
  isInitAlive: true,
  hasRunOutOfMemory: false,
  isBeingStarted: false,
}
const dead: RunEvidence = { ...alive, isShimAlive: false, isInitAlive: false }

test('a run is running while its first process or the shim that waits for it lives', () => {
  assert.equal(deriveRunPhase(record, alive).phase, 'running')
  assert.equal(deriveRunPhase(record, { ...alive, isInitAlive: false }).phase, 'running')
  assert.equal(deriveRunPhase(record, { ...alive, isShimAlive: false }).phase, 'running')
  assert.equal(deriveRunPhase({ ...record, is_stop_requested: true }, alive).phase, 'stopping')
})

test('an exit code tells how a run ended: by itself, by a signal, out of memory, or because it was stopped', () => {
  const end = (code: number, change: Partial<RunEvidence> = {}): unknown => {
    const phase = deriveRunPhase(record, { ...dead, exit: { code }, ...change })
    return phase.phase === 'ended' ? phase.outcome : null
  }
  assert.deepEqual(end(0), { kind: 'exited', code: 0 })
  assert.deepEqual(end(255), { kind: 'exited', code: 255 })
  assert.deepEqual(end(143), { kind: 'signalled', signal: 'SIGTERM' })
  assert.deepEqual(end(137), { kind: 'signalled', signal: 'SIGKILL' })
  assert.deepEqual(end(137, { hasRunOutOfMemory: true }), { kind: 'out_of_memory' })
  assert.deepEqual(end(1, { hasRunOutOfMemory: true }), { kind: 'exited', code: 1 })
  const stopped = deriveRunPhase({ ...record, is_stop_requested: true }, { ...dead, exit: { code: 137 } })
  assert.deepEqual(stopped, { phase: 'ended', outcome: { kind: 'stopped' } })
})

test('a run of an earlier boot is lost, even if processes with its process ids are alive', () => {
  const phase = deriveRunPhase(record, { ...alive, bootId: 'other' })
  assert.ok(phase.phase === 'ended' && phase.outcome.kind === 'lost')
})

test('a run that a restart of the machine ended has this reason, even if its workload had the time to end', () => {
  const end = (exit: RunEvidence['exit']): unknown => {
    const phase = deriveRunPhase(record, { ...dead, bootId: 'other', exit })
    return phase.phase === 'ended' ? phase.outcome : null
  }
  for (const exit of [null, { code: 143 }, { code: 137 }]) assert.deepEqual(end(exit), MACHINE_RESTARTED)
  for (const code of [0, 1]) assert.deepEqual(end({ code }), { kind: 'exited', code })
})

test('a run whose end no process recorded is lost, unless its stop was requested', () => {
  const phase = deriveRunPhase(record, dead)
  assert.ok(phase.phase === 'ended' && phase.outcome.kind === 'lost')
  assert.deepEqual(deriveRunPhase({ ...record, is_stop_requested: true }, dead), {
    phase: 'ended',
    outcome: { kind: 'stopped' },
  })
})

test('a recorded end is final, whatever the machine shows later', () => {
  const outcome = { kind: 'exited', code: 3 } as const
  assert.deepEqual(deriveRunPhase({ ...record, outcome }, { ...alive, exit: { code: 4 } }), { phase: 'ended', outcome })
})

test('a run counts as starting only while this process starts it', () => {
  assert.equal(deriveRunPhase({ ...record, started: null }, { ...dead, isBeingStarted: true }).phase, 'starting')
  assert.equal(deriveRunPhase({ ...record, started: null }, dead).phase, 'ended')
})

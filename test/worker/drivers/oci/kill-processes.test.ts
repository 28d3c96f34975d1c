import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { test } from 'node:test'
import { asId, type RunId } from '../../../../src/domain/ids.ts'
import { systemClock, type Clock } from '../../../../src/lib/clock.ts'
import type { OciContext } from '../../../../src/worker/drivers/oci/context.ts'
import { killProcesses } from '../../../../src/worker/drivers/oci/run/release.ts'

/** Longer than all limits together within which processes must end. */
const LIST_MS = 60_000

test('processes are killed also if a busy worker takes longer than their limit to list them', async () => {
  const child = spawn('sleep', ['600'], { stdio: 'ignore' })
  const ended = once(child, 'exit')
  let passedMs = 0
  const clock: Clock = { ...systemClock, monotonicMs: () => systemClock.monotonicMs() + passedMs }
  const pids = (): Promise<readonly number[]> => {
    passedMs += LIST_MS
    return Promise.resolve(child.signalCode === null && child.pid !== undefined ? [child.pid] : [])
  }
  const cgroups = { pids, commandPids: () => Promise.resolve([]) }
  const context = { cgroups, clock } as unknown as OciContext // only these are used
  try {
    await killProcesses(context, asId<RunId>('run'))
    await ended
    assert.equal(child.signalCode, 'SIGKILL')
  } finally {
    child.kill('SIGKILL')
  }
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { asId, type RunId, type SandboxId } from '../../../src/domain/ids.ts'
import type { ObservedRun } from '../../../src/contract/workers/worker-protocol.ts'
import { makeStartReports, withoutPhases } from '../../../src/worker/agent/start-reports.ts'

test('the phases of a start are reported until a report with them is answered', () => {
  const reports = makeStartReports()
  const run: ObservedRun = {
    run_id: asId<RunId>('one'),
    sandbox_id: asId<SandboxId>('box'),
    phase: 'running',
    start_phases: [{ phase: 'runtime', offset_ms: 0, duration_ms: 3 }],
    start_age_ms: 5,
  }
  const other: ObservedRun = { ...run, run_id: asId<RunId>('other') }
  for (const _ of ['sent', 'sent again without an answer'])
    assert.deepEqual(reports.withoutRecorded([run, other]), [run, other])
  reports.noteRecorded({ observed_runs: [run, withoutPhases(other)] })
  assert.deepEqual(reports.withoutRecorded([run, other]), [withoutPhases(run), other])
  assert.deepEqual(Object.keys(withoutPhases(run)), ['run_id', 'sandbox_id', 'phase'])
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeStoppedRuns } from '../../../src/worker/agent/stopped-runs.ts'
import { makeDesiredRun } from '../../support/desired-run.ts'

const statuses = (runs: readonly { readonly desired_status: string }[]): readonly string[] =>
  runs.map(({ desired_status }) => desired_status)

test('a run that an answer stops is not started again by an answer to a report that was sent before', () => {
  const stopped = makeStoppedRuns()
  const run = makeDesiredRun()
  const stop = { ...run, desired_status: 'stopped' } as const
  stopped.keepStopped([stop], { desiredBefore: [run], answeredSeq: 6, sentSeq: 7 })
  assert.deepEqual(statuses(stopped.keepStopped([run], { desiredBefore: [stop], answeredSeq: 7, sentSeq: 8 })), [
    'stopped',
  ])
})

test('nor is a run that an answer no longer desires, and that the worker may have removed', () => {
  const stopped = makeStoppedRuns()
  const [desired, stray] = [makeDesiredRun(), makeDesiredRun()]
  stopped.keepStopped([], { desiredBefore: [desired], answeredSeq: 6, sentSeq: 7 })
  stopped.noteRemoved(stray.run_id, 7)
  const kept = stopped.keepStopped([desired, stray], { desiredBefore: [], answeredSeq: 7, sentSeq: 7 })
  assert.deepEqual(statuses(kept), ['stopped', 'stopped'])
})

test('an answer to a later report is believed', () => {
  const stopped = makeStoppedRuns()
  const run = makeDesiredRun()
  stopped.noteRemoved(run.run_id, 7)
  const kept = stopped.keepStopped([run], { desiredBefore: [], answeredSeq: 8, sentSeq: 8 })
  assert.deepEqual(statuses(kept), ['running'])
})

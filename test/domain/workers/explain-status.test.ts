import assert from 'node:assert/strict'
import { test } from 'node:test'
import { describeOutcome } from '../../../src/domain/sandboxes/describe-outcome.ts'
import { describeMissing, explainStatus, type StatusFacts } from '../../../src/domain/workers/explain-status.ts'
import { CAUSES, SANDBOX_STATUSES, STATUS_REASONS, type CauseCode } from '../../../src/domain/sandboxes/lifecycle.ts'
import { START_FAILURES, type RunOutcome } from '../../../src/domain/sandboxes/run.ts'
import { REQUIREMENT_KINDS } from '../../../src/domain/workers/explain-placement.ts'

const FACTS: StatusFacts = {
  name: 'web',
  slug: 'web-1',
  org: 'acme',
  status: 'running',
  status_reason: null,
  is_deleted: false,
  is_org_suspended: false,
  last_failure_message: null,
  restart_at: null,
  worker: 'w-1',
  is_worker_live: true,
  live_servers: 1,
  cause: null,
  outcome: null,
  waiting: null,
}

const OUTCOMES: Readonly<Record<RunOutcome['kind'], RunOutcome>> = {
  exited: { kind: 'exited', code: 3 },
  signalled: { kind: 'signalled', signal: 'SIGKILL' },
  out_of_memory: { kind: 'out_of_memory' },
  disk_full: { kind: 'disk_full' },
  stopped: { kind: 'stopped' },
  start_failed: { kind: 'start_failed', reason: 'image', message: 'no such image' },
  lost: { kind: 'lost', message: 'the lease is over' },
}
const codes = Object.keys(CAUSES).filter((code): code is CauseCode => code in CAUSES)

/** Every combination that a sandbox can have. */
function* allFacts(): Generator<StatusFacts> {
  for (const status of SANDBOX_STATUSES)
    for (const cause of [null, ...codes])
      for (const status_reason of status === 'starting' ? [null, ...STATUS_REASONS] : [null])
        for (const is_worker_live of [true, false])
          for (const live_servers of [0, 1])
            for (const flags of [{}, { is_deleted: true }, { is_org_suspended: true }])
              yield { ...FACTS, status, cause, status_reason, is_worker_live, live_servers, ...flags }
  for (const status of ['stopped', 'failed'] as const) {
    for (const outcome of Object.values(OUTCOMES)) yield { ...FACTS, status, outcome }
    for (const reason of START_FAILURES)
      yield { ...FACTS, status, outcome: { kind: 'start_failed', reason, message: 'why' } }
  }
  for (const kind of REQUIREMENT_KINDS) {
    const missing = [{ kind, name: 'vcpus', requested: 4, largest_free: 2, accepted: 'a worker with it' }]
    const waiting = { position: 1, waiting: 2, missing }
    yield { ...FACTS, status: 'starting', status_reason: 'insufficient_capacity', waiting }
  }
}

test('every status, reason, cause, outcome, start failure and missing requirement has words, and all but a running sandbox has advice', () => {
  for (const facts of allFacts()) {
    const { state, reasons, advice } = explainStatus(facts)
    const all = [state, ...reasons, ...advice]
    assert.ok(
      all.every((text) => text.length > 5 && !/undefined|null|\[object/.test(text)),
      JSON.stringify({ facts, all }),
    )
    if (facts.status !== 'running') assert.ok(advice.length > 0, JSON.stringify(facts))
    assert.equal(new Set(advice).size, advice.length, JSON.stringify(advice))
  }
})

test('every end of a run has words', () => {
  for (const outcome of Object.values(OUTCOMES)) assert.ok(describeOutcome(outcome).length > 5)
})

test('the words for what a waiting sandbox lacks name the amounts, and the advice the commands', () => {
  const missing = [{ kind: 'resource', name: 'vcpus', requested: 8, largest_free: 3, accepted: null }] as const
  assert.equal(describeMissing(missing[0]), 'it needs 8 vCPUs, and 3 are free')
  const waits = { ...FACTS, status: 'starting', status_reason: 'insufficient_capacity' } as const
  const { state, reasons, advice } = explainStatus({ ...waits, waiting: { position: 2, waiting: 5, missing } })
  assert.equal(state, 'waits for a worker with enough capacity')
  assert.deepEqual(reasons, ['it is number 2 of 5 that wait', 'it needs 8 vCPUs, and 3 are free'])
  assert.ok(advice.some((line) => line.includes('sandyard worker token')))
})

test('a failed start names what failed and what to check, and a suspension how to end it', () => {
  const outcome = { kind: 'start_failed', reason: 'registry', message: 'no route' } as const
  const failed = explainStatus({
    ...FACTS,
    status: 'failed',
    outcome,
    cause: 'worker_report',
    last_failure_message: 'no route',
  })
  assert.equal(failed.reasons[0], 'no route')
  assert.ok(failed.advice.includes('check the credentials: sandyard registry list --org acme'))
  const restart_at = new Date('2026-11-23T00:00:00Z')
  const restarts = explainStatus({ ...FACTS, status: 'failed', outcome: { kind: 'exited', code: 1 }, restart_at })
  assert.equal(restarts.state, 'failed, and its label sandyard.restart starts it again at 2026-11-23T00:00:00.000Z')
  assert.equal(restarts.advice.at(-1), 'end the restarts: msb stop web')
  const suspended = explainStatus({ ...FACTS, status: 'stopped', cause: 'suspended', is_org_suspended: true })
  assert.equal(suspended.advice[0], 'end the suspension: sandyard org resume acme')
})

test('a name that means something to a shell is quoted in commands', () => {
  const { advice } = explainStatus({ ...FACTS, status: 'created', name: "a'; reboot" })
  assert.deepEqual(advice, [`start it: msb start 'a'\\''; reboot'`])
})

test('a start that failed is never explained by the end of a workload, which did not begin', () => {
  const outcome = { kind: 'start_failed', reason: 'image', message: 'no such image' } as const
  const facts = { ...FACTS, status: 'failed', last_failure_message: 'no such image', cause: 'workload_ended' } as const
  assert.deepEqual(explainStatus({ ...facts, outcome }).reasons, ['no such image'])
  assert.deepEqual(explainStatus({ ...facts, outcome, cause: 'worker_report' }).reasons, ['no such image'])
  assert.deepEqual(explainStatus({ ...facts, outcome: OUTCOMES.exited }).reasons, [
    'no such image',
    'the workload ended by itself',
  ])
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import {
  isActive,
  isTerminal,
  nextStatus,
  SANDBOX_STATUSES,
  TRANSITION_EVENTS,
  type SandboxStatus,
  type TransitionEvent,
} from '../../../src/domain/sandboxes/lifecycle.ts'
import { transitionOfOutcome, type RunOutcome } from '../../../src/domain/sandboxes/run.ts'

/**
 * The lifecycle as designed: status, whether a worker is assigned, event, next status. No other combination is allowed.
 */
const TABLE: readonly (readonly [SandboxStatus, 'placed' | 'waiting' | 'either', TransitionEvent, SandboxStatus])[] = [
  ['created', 'either', 'start_admitted', 'starting'],
  ['stopped', 'either', 'start_admitted', 'starting'],
  ['failed', 'either', 'start_admitted', 'starting'],
  ['starting', 'waiting', 'no_capacity', 'starting'],
  ['starting', 'waiting', 'placed', 'starting'],
  ['starting', 'placed', 'worker_running', 'running'],
  ['starting', 'placed', 'worker_start_failed', 'failed'],
  ['starting', 'waiting', 'stop_requested', 'stopped'],
  ['starting', 'placed', 'stop_requested', 'stopping'],
  ['running', 'either', 'stop_requested', 'stopping'],
  ['starting', 'either', 'ended_well', 'stopped'],
  ['running', 'either', 'ended_well', 'stopped'],
  ['stopping', 'either', 'ended_well', 'stopped'],
  ['starting', 'either', 'ended_badly', 'failed'],
  ['running', 'either', 'ended_badly', 'failed'],
  ['stopping', 'either', 'ended_badly', 'stopped'],
  ['stopping', 'placed', 'worker_start_failed', 'stopped'],
  ['stopping', 'either', 'worker_stopped', 'stopped'],
  ['starting', 'placed', 'worker_lost', 'failed'],
  ['running', 'placed', 'worker_lost', 'failed'],
  ['stopping', 'placed', 'worker_lost', 'failed'],
]

test('the lifecycle is this table, and no other event applies', () => {
  for (const status of SANDBOX_STATUSES)
    for (const isPlaced of [false, true])
      for (const event of TRANSITION_EVENTS) {
        const row = TABLE.find(
          ([from, place, what]) =>
            from === status && what === event && (place === 'either' || (place === 'placed') === isPlaced),
        )
        assert.equal(
          nextStatus({ status, isPlaced }, event),
          row?.[3] ?? null,
          `${status} ${String(isPlaced)} ${event}`,
        )
      }
})

test('a stop applies once more to a sandbox that stops for a drain, and to nothing else that stops', () => {
  for (const isPlaced of [false, true]) {
    assert.equal(nextStatus({ status: 'stopping', isPlaced, isDrained: true }, 'stop_requested'), 'stopping')
    assert.equal(nextStatus({ status: 'stopping', isPlaced, isDrained: false }, 'stop_requested'), null)
  }
})

test('a status is active, terminal, or that of a sandbox that never started', () => {
  for (const status of SANDBOX_STATUSES)
    assert.equal([isActive(status), isTerminal(status), status === 'created'].filter(Boolean).length, 1, status)
})

test('an outcome has a message exactly if it is a failure', () => {
  const outcomes: fc.Arbitrary<RunOutcome> = fc.oneof(
    fc.record({ kind: fc.constant('exited' as const), code: fc.integer({ min: 0, max: 255 }) }),
    fc.record({ kind: fc.constant('signalled' as const), signal: fc.constant('SIGKILL') }),
    fc.constant<RunOutcome>({ kind: 'out_of_memory' }),
    fc.constant<RunOutcome>({ kind: 'stopped' }),
    fc.constant<RunOutcome>({ kind: 'start_failed', reason: 'image', message: 'no such image' }),
    fc.constant<RunOutcome>({ kind: 'lost', message: 'the machine is gone' }),
  )
  fc.assert(
    fc.property(outcomes, (outcome) => {
      const { event, message } = transitionOfOutcome(outcome)
      assert.equal(event === 'ended_well', message === null)
    }),
  )
  assert.equal(transitionOfOutcome({ kind: 'exited', code: 0 }).event, 'ended_well')
  assert.equal(transitionOfOutcome({ kind: 'stopped' }).event, 'ended_well')
  assert.equal(transitionOfOutcome({ kind: 'exited', code: 3 }).message, 'the workload exited with code 3')
})

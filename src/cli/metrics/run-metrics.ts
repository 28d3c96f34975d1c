import { Counter, Histogram, type Registry } from 'prom-client'
import type { TransitionObserver } from '../../control/sandboxes/transitions/transition.ts'
import { ISOLATION_LEVEL_FACT, ISOLATION_LEVELS, isIsolationLevel } from '../../domain/isolation.ts'
import { START_FAILURES } from '../../domain/sandboxes/run.ts'
import { isTerminal, type CauseCode } from '../../domain/sandboxes/lifecycle.ts'

/** The causes with which a run is recorded as lost. */
const LOSSES: readonly CauseCode[] = ['worker_lost', 'workload_ended']

const BUCKETS = [0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800]

/**
 * Adds the metrics of runs. Each process counts the transitions that it committed. Their sum over all processes is right,
 * because each transition is committed once.
 */
export function makeRunMetrics(register: Registry): Required<TransitionObserver> {
  const registers = [register]
  const placed = new Histogram({
    name: 'sandyard_run_placement_duration_seconds',
    help: 'From the request for a run to the choice of its worker.',
    buckets: BUCKETS,
    registers,
  })
  const started = new Histogram({
    name: 'sandyard_run_start_duration_seconds',
    help: 'From the request for a run until its sandbox runs, by isolation.',
    labelNames: ['isolation'],
    buckets: BUCKETS,
    registers,
  })
  const ended = new Counter({
    name: 'sandyard_run_ends_total',
    help: 'Runs that ended, by the sandbox’s status, the outcome, and its reason: of a failed start, or the cause of the end.',
    labelNames: ['status', 'outcome', 'reason'],
    registers,
  })
  // Rates miss the first event of a series that begins with it, so the series of failures and starts begin at 0.
  for (const isolation of ISOLATION_LEVELS) started.zero({ isolation })
  for (const reason of START_FAILURES) ended.inc({ status: 'failed', outcome: 'start_failed', reason }, 0)
  for (const reason of LOSSES) ended.inc({ status: 'failed', outcome: 'lost', reason }, 0)
  return {
    onTransitions(steps) {
      for (const { request, row, status, at } of steps) {
        const { event, outcome, cause, facts } = request
        const level = facts?.[ISOLATION_LEVEL_FACT]
        const seconds = row.opened_at === null ? null : (at.getTime() - row.opened_at.getTime()) / 1000
        if (seconds !== null && event === 'placed') placed.observe(seconds)
        if (seconds !== null && event === 'worker_running')
          started.observe({ isolation: level !== undefined && isIsolationLevel(level) ? level : 'unknown' }, seconds)
        if (isTerminal(status))
          ended.inc({
            status,
            outcome: outcome?.kind ?? 'not_placed',
            reason: outcome?.kind === 'start_failed' ? outcome.reason : cause.code,
          })
      }
    },
  }
}

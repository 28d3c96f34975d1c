import { Counter, Histogram, type Registry } from 'prom-client'
import type { TransitionObserver } from '../../control/sandboxes/transitions/transition.ts'
import { DRIVERS } from '../../settings/worker.ts'

const BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600]

/** Adds the metrics of what workers measured of starts. Each process counts the starts whose reports it recorded. */
export function makeStartMetrics(register: Registry): Required<TransitionObserver> {
  const labelNames = ['phase', 'driver']
  const registers = [register]
  const durations = new Histogram({
    name: 'sandyard_run_start_phase_duration_seconds',
    help: 'The duration of a phase of starts, as workers measured it. Phases may overlap.',
    labelNames,
    buckets: BUCKETS,
    registers,
  })
  const failures = new Counter({
    name: 'sandyard_run_start_phase_failures_total',
    help: 'Starts that failed, by the phase that failed.',
    labelNames,
    registers,
  })
  return {
    onTransitions(steps) {
      for (const { request } of steps) {
        if (request.start === undefined) continue
        const driver = DRIVERS.find((name) => name === request.start?.driver) ?? 'unknown'
        for (const { phase, duration_ms, has_failed } of request.start.phases) {
          durations.observe({ phase, driver }, duration_ms / 1000)
          if (has_failed === true) failures.inc({ phase, driver })
        }
      }
    },
  }
}

import { Counter, Gauge, Histogram, type Registry } from 'prom-client'
import type { Clock } from '../../lib/clock.ts'
import type { LoopObserver } from '../../loops/loop.ts'

/** The metrics of the loops, and whether this process leads them. */
export type LoopMetrics = { readonly observer: LoopObserver; readonly isLeading: () => boolean }

/** The metrics that a process shows only while it leads. */
export const LEADER_LOOP_METRICS: readonly string[] = [
  'sandyard_loop_last_success_timestamp_seconds',
  'sandyard_loop_period_seconds',
]

/** Adds the metrics of the loops. */
export function makeLoopMetrics(register: Registry, clock: Pick<Clock, 'now'>): LoopMetrics {
  const registers = [register]
  const labelNames = ['loop']
  let isLeading = false
  const leader = new Gauge({
    name: 'sandyard_leader',
    help: '1 if this process leads the loops, else 0. Exactly one process leads.',
    registers,
  })
  const durations = new Histogram({
    name: 'sandyard_loop_pass_duration_seconds',
    help: 'The duration of a pass of a loop, failed passes included.',
    labelNames,
    buckets: [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60],
    registers,
  })
  const failures = new Counter({
    name: 'sandyard_loop_failures_total',
    help: 'Passes of a loop that failed. A failed pass is repeated.',
    labelNames,
    registers,
  })
  const successAt = new Gauge({
    name: 'sandyard_loop_last_success_timestamp_seconds',
    help: 'When the loop’s last successful pass ended, or when this process became the leader. Absent if it doesn’t lead.',
    labelNames,
    registers,
  })
  const periods = new Gauge({
    name: 'sandyard_loop_period_seconds',
    help: 'The longest time between two passes of the loop. Absent if this process doesn’t lead.',
    labelNames,
    registers,
  })
  return {
    isLeading: () => isLeading,
    observer: {
      onLead(loops) {
        isLeading = true
        leader.set(1)
        for (const { name: loop, periodMs } of loops) {
          successAt.set({ loop }, clock.now().getTime() / 1000)
          periods.set({ loop }, periodMs / 1000)
          failures.inc({ loop }, 0)
        }
      },
      onLeadEnd() {
        isLeading = false
        leader.set(0)
        successAt.reset()
        periods.reset()
      },
      onPass({ loop, durationMs, hasFailed }) {
        durations.observe({ loop }, durationMs / 1000)
        if (hasFailed) failures.inc({ loop })
        else if (isLeading) successAt.set({ loop }, clock.now().getTime() / 1000)
      },
    },
  }
}

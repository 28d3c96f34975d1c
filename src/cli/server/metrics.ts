import { collectDefaultMetrics, Gauge, Registry } from 'prom-client'
import type { ControlDeps } from '../../control/make-deps.ts'
import type { Log } from '../../lib/log.ts'
import * as runs from '../../store/sandboxes/runs.ts'

/** Creates the metrics of the process and of its work. The HTTP server adds its request metrics. */
export function makeMetrics(
  deps: Pick<ControlDeps, 'db' | 'waitPermits' | 'channelLimit' | 'logStreamLimit'> & {
    readonly log: Log
    readonly replicas: { readonly count: number }
  },
): Registry {
  const register = new Registry()
  collectDefaultMetrics({ register })
  const open = new Gauge({
    name: 'sandyard_open_runs',
    help: 'Runs that have begun and not ended, by the status of their sandbox.',
    labelNames: ['status'],
    registers: [register],
    async collect() {
      try {
        const counts = await deps.db.asSystem((q) => runs.countOpen(q))
        open.reset()
        for (const { status, count } of counts) open.set({ status }, count)
      } catch (error) {
        open.reset() // show no value rather than an old one; the other metrics are still useful
        deps.log.warn({ error }, 'counting open runs for /metrics failed')
      }
    },
  })
  addGauge(register, () => deps.replicas.count, {
    name: 'sandyard_replicas',
    help: 'Server processes that live on the same database, this one included.',
  })
  addGauge(register, () => deps.waitPermits.inUse, {
    name: 'sandyard_waiting_requests',
    help: 'Requests that wait for a sandbox to run.',
  })
  addGauge(register, () => deps.logStreamLimit.permitsInUse, {
    name: 'sandyard_open_log_streams',
    help: 'Logs of sandboxes that are being read or followed.',
  })
  addGauge(register, () => deps.channelLimit.permitsInUse, {
    name: 'sandyard_open_channels',
    help: 'Command channels that are open, or are being opened.',
  })
  return register
}

/** Adds a gauge whose value is read whenever the metrics are scraped. */
function addGauge(
  register: Registry,
  count: () => number,
  words: { readonly name: string; readonly help: string },
): void {
  const gauge = new Gauge({
    ...words,
    registers: [register],
    collect() {
      gauge.set(count())
    },
  })
}

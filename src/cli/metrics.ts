import { collectDefaultMetrics, Gauge, Registry } from 'prom-client'
import type { ControlDeps } from '../control/deps.ts'
import type { Log } from '../lib/log.ts'
import * as runs from '../store/runs.ts'

/** What `/metrics` tells of the process and of its work, beside the HTTP requests that the server counts itself. */
export function makeMetrics(
  deps: Pick<ControlDeps, 'db' | 'waits' | 'channelPlaces' | 'logPlaces'> & { readonly log: Log },
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
        open.reset() // no figure rather than an old one; the other metrics are still worth reading
        deps.log.warn({ error }, 'open runs could not be counted for /metrics')
      }
    },
  })
  addGauge(register, deps.waits, {
    name: 'sandyard_waiting_requests',
    help: 'Requests that wait for a sandbox to run.',
  })
  addGauge(register, deps.logPlaces, {
    name: 'sandyard_open_log_streams',
    help: 'Logs of sandboxes that are being read or followed.',
  })
  addGauge(register, deps.channelPlaces, {
    name: 'sandyard_open_channels',
    help: 'Command channels that are open, or are being opened.',
  })
  return register
}

/** The count of places that are taken, as it is when it is asked for. */
function addGauge(
  register: Registry,
  places: { readonly taken: number },
  words: { readonly name: string; readonly help: string },
): void {
  const taken = new Gauge({
    ...words,
    registers: [register],
    collect() {
      taken.set(places.taken)
    },
  })
}

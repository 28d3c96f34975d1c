import { Counter, type Registry } from 'prom-client'
import type { Clock } from '../../lib/clock.ts'
import { makeLimitedRead } from '../../lib/streams/limited-read.ts'
import type { Log } from '../../lib/log.ts'
import type { Database } from '../../store/postgres/database.ts'
import { FLEET_METRICS, readFleetNumbers, type FleetNumbers } from './fleet-metrics.ts'
import { addGauge, addNodeMetrics } from './gauges.ts'
import { addProcessMetrics, type ProcessSources } from './process-metrics.ts'

/** What the metrics of a server process read. */
export type ServerMetricsDeps = Omit<ProcessSources, 'isReady'> & {
  readonly db: Pick<Database, 'asSystem'>
  readonly clock: Clock
  readonly log: Log
  readonly isLeading: () => boolean
  /** Reads what the run lacks that has waited the longest for capacity. */
  readonly explainOldestWaiting: () => Promise<FleetNumbers['oldestLacks']>
  readonly unreadyReasons: () => Promise<readonly string[]>
  /** Up to this number of workers, each worker has series of its own. */
  readonly workerSeriesMax: number
}

/**
 * How long the numbers of the installation serve all scrapes, in milliseconds. It is less than any usual interval of
 * scrapes, so a scraper sees new numbers each time, and a second scraper costs nothing.
 */
const FRESH_MS = 4_000
/** How long a scrape waits for the database, in milliseconds. Then it shows the other metrics. */
export const SCRAPE_LIMIT_MS = 2_000

/**
 * Adds the metrics of a server process. The HTTP server adds those of its requests. A scrape never hangs: without an
 * answer of the database, the metrics that come from it are absent.
 */
export function addServerMetrics(register: Registry, deps: ServerMetricsDeps): void {
  const { clock, log, db } = deps
  addNodeMetrics(register)
  const failures = new Counter({
    name: 'sandyard_metrics_read_failures_total',
    help: 'Reads for scrapes that failed or took too long. The metrics that needed them were absent.',
    registers: [register],
  })
  const limitedRead = <T>(read: () => Promise<T>): (() => Promise<T | null>) =>
    makeLimitedRead({
      clock,
      read,
      freshMs: FRESH_MS,
      limitMs: SCRAPE_LIMIT_MS,
      onFailure: (error) => {
        failures.inc()
        log.warn({ error }, 'a read for /metrics failed; the metrics that need it are absent')
      },
    })
  const isReady = limitedRead(async () => (await deps.unreadyReasons()).length === 0)
  addProcessMetrics(register, { ...deps, isReady })
  const readNumbers = limitedRead(async () => {
    const numbers = await db.asSystem((q) => readFleetNumbers(q, clock.now()))
    return { ...numbers, oldestLacks: await deps.explainOldestWaiting() }
  })
  for (const { read, ...text } of FLEET_METRICS) {
    addGauge(register, text, async () => {
      const numbers = deps.isLeading() ? await readNumbers() : null
      return numbers === null ? [] : read({ ...numbers, workerSeriesMax: deps.workerSeriesMax })
    })
  }
}

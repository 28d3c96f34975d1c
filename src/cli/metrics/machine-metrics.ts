import { Counter, Gauge, Histogram, type Registry } from 'prom-client'
import type { Clock } from '../../lib/clock.ts'
import { makeLimitedRead } from '../../lib/streams/limited-read.ts'
import type { Log } from '../../lib/log.ts'
import { RUN_PHASES } from '../../contract/workers/worker-protocol.ts'
import type { ControlPlane } from '../../worker/agent/control-plane.ts'
import type { Driver } from '../../worker/drivers/driver.ts'
import type { ImageResolver } from '../../worker/drivers/shared/desired-run.ts'
import { StartError } from '../../worker/start-error.ts'
import type { VolumeStorage } from '../../worker/volumes/volume-storage.ts'
import { freeBytesOf, sizeBytesOf } from './file-system-metrics.ts'
import { addGauge, addReadCounter } from './gauges.ts'

/** What the metrics of a worker's machine read. */
export type MachineSources = {
  readonly driver: Pick<Driver, 'list' | 'pools' | 'warmStarts'>
  readonly storage: Pick<VolumeStorage, 'root'>
  /** Reads the size of all image layers of the machine. */
  readonly readImageBytes: () => Promise<number>
  readonly clock: Clock
  readonly log: Log
}

const FRESH_MS = 4_000
const LIMIT_MS = 2_000

/** Adds the metrics of a worker's machine. A read that fails or takes too long leaves its metric absent. */
export function addMachineMetrics(register: Registry, sources: MachineSources): void {
  const { clock, driver, log, storage } = sources
  const limitedRead = <T>(read: () => Promise<T>): (() => Promise<T | null>) =>
    makeLimitedRead({
      clock,
      read,
      freshMs: FRESH_MS,
      limitMs: LIMIT_MS,
      onFailure: (error) => log.warn({ error }, 'a read for the metrics of this machine failed'),
    })
  const readRuns = limitedRead(() => driver.list())
  addGauge(
    register,
    { name: 'sandyard_machine_runs', help: 'Runs that the driver has recorded, by phase.', labelNames: ['phase'] },
    async () => {
      const runs = await readRuns()
      if (runs === null) return []
      return RUN_PHASES.map((phase) => {
        return { labels: { phase }, value: runs.filter((run) => run.phase === phase).length }
      })
    },
  )
  addGauge(
    register,
    {
      name: 'sandyard_machine_pool_ready',
      help: 'Resources that are prepared for the next starts: disks, user namespaces, networks, warm sandboxes.',
      labelNames: ['pool'],
    },
    () => (driver.pools?.() ?? []).map(({ name, ready }) => ({ labels: { pool: name }, value: ready })),
  )
  addGauge(
    register,
    {
      name: 'sandyard_machine_pool_free',
      help: 'How many runs may still get a resource of the pool, such as a network of the address pool.',
      labelNames: ['pool'],
    },
    () =>
      (driver.pools?.() ?? []).flatMap(({ name, free }) =>
        free === null ? [] : [{ labels: { pool: name }, value: free }],
      ),
  )
  addReadCounter(
    register,
    {
      name: 'sandyard_machine_warm_starts_total',
      help: 'Starts by whether they used a warm sandbox: hit, miss (none was ready for it), unsuited (no warm sandbox can serve it).',
      labelNames: ['result'],
    },
    () => Object.entries(driver.warmStarts?.() ?? {}).map(([result, value]) => ({ labels: { result }, value })),
  )
  const readImageBytes = limitedRead(sources.readImageBytes)
  addGauge(
    register,
    { name: 'sandyard_machine_image_store_bytes', help: 'The size of all unpacked image layers.' },
    async () => {
      const value = await readImageBytes()
      return value === null ? [] : [{ value }]
    },
  )
  addGauge(
    register,
    {
      name: 'sandyard_machine_volumes_free_bytes',
      help: 'Free space on the file system of the volumes: the volume pool, if there is one.',
    },
    () => freeBytesOf(storage.root),
  )
  addGauge(
    register,
    { name: 'sandyard_machine_volumes_size_bytes', help: 'The size of the file system of the volumes.' },
    () => sizeBytesOf(storage.root),
  )
}

/** Adds the metrics of image pulls. Returns the function that makes a resolver count its pulls. */
export function makePullMetrics(
  register: Registry,
  clock: Pick<Clock, 'monotonicMs'>,
): (images: ImageResolver) => ImageResolver {
  const durations = new Histogram({
    name: 'sandyard_machine_pull_duration_seconds',
    help: 'The duration of a pull that succeeded, from the request to the unpacked image.',
    buckets: [0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800],
    registers: [register],
  })
  const failures = new Counter({
    name: 'sandyard_machine_pull_failures_total',
    help: 'Images that a start could not get, by reason: image (missing or unusable), registry, disk, host, cancelled.',
    labelNames: ['reason'],
    registers: [register],
  })
  return (images) => ({
    ...images,
    async resolve(reference, options) {
      const startedMs = clock.monotonicMs()
      let isPulled = false
      const onFetched = (): void => {
        isPulled = true
        options.onFetched?.()
      }
      try {
        const image = await images.resolve(reference, { ...options, onFetched })
        if (isPulled) durations.observe((clock.monotonicMs() - startedMs) / 1000)
        return image
      } catch (error) {
        failures.inc({ reason: error instanceof StartError ? error.reason : 'host' })
        throw error
      }
    },
  })
}

/** Adds the metrics of syncs with the control plane. Returns a control plane that counts its syncs. */
export function withSyncMetrics(
  register: Registry,
  { controlPlane, clock }: { readonly controlPlane: ControlPlane; readonly clock: Pick<Clock, 'now'> },
): ControlPlane {
  const failures = new Counter({
    name: 'sandyard_machine_sync_failures_total',
    help: 'Syncs with the control plane that failed.',
    registers: [register],
  })
  const recordedAt = new Gauge({
    name: 'sandyard_machine_last_report_timestamp_seconds',
    help: 'When the control plane last recorded a report of this worker.',
    registers: [register],
  })
  return {
    ...controlPlane,
    async sync(request, signal, onRecorded) {
      try {
        return await controlPlane.sync(request, signal, async () => {
          await onRecorded?.()
          recordedAt.set(clock.now().getTime() / 1000)
        })
      } catch (error) {
        if (!signal.aborted) failures.inc()
        throw error
      }
    },
  }
}

import { DISK_PRESSURES, type WorkerDisk } from '../../domain/workers/disk-pressure.ts'
import type { MissingRequirement } from '../../domain/workers/explain-placement.ts'
import { WORKER_LEASE_MS } from '../../domain/workers/lease.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as numbers from '../../store/workers/fleet-numbers.ts'
import type { MetricText, Sample } from './gauges.ts'

/** The numbers of the installation at one time. All server processes would read the same. */
export type FleetNumbers = {
  readonly now: Date
  readonly workers: readonly numbers.WorkerNumbers[]
  readonly waiting: readonly numbers.WaitingNumbers[]
  readonly openRuns: Awaited<ReturnType<typeof numbers.countOpenRuns>>
  readonly volumes: readonly numbers.VolumeNumbers[]
  readonly webhooks: numbers.WebhookNumbers
  /** What the run lacks that has waited the longest for capacity. */
  readonly oldestLacks: readonly MissingRequirement[]
  /** Up to this number of workers, each worker has series of its own. */
  readonly workerSeriesMax: number
}

/** Reads the numbers of the installation that the tables alone tell. */
export async function readFleetNumbers(
  q: Queryable,
  now: Date,
): Promise<Omit<FleetNumbers, 'workerSeriesMax' | 'oldestLacks'>> {
  return {
    now,
    workers: await numbers.listWorkers(q),
    waiting: await numbers.countWaiting(q, now),
    openRuns: await numbers.countOpenRuns(q),
    volumes: await numbers.countVolumes(q),
    webhooks: await numbers.countWebhooks(q),
  }
}

type FleetMetric = MetricText & { readonly read: (fleet: FleetNumbers) => readonly Sample[] }

const WORKER_STATES = ['joined', 'live', 'silent', 'draining'] as const
type WorkerState = (typeof WORKER_STATES)[number]

/** The state of a worker, as `sandyard worker list` shows it. */
function stateOf({ lease_expires_at, is_draining }: numbers.WorkerNumbers, now: Date): WorkerState {
  if (lease_expires_at !== null && lease_expires_at <= now) return 'silent'
  if (is_draining) return 'draining'
  return lease_expires_at === null ? 'joined' : 'live'
}

const MIB = 2 ** 20

type Resource = {
  readonly fleet: MetricText
  readonly worker: MetricText
  /** The number of one worker. Null: not limited. */
  readonly read: (worker: numbers.WorkerNumbers) => number | null
}

/** What workers offer and use: summed by driver over the live workers, and for each worker. */
const RESOURCES: readonly Resource[] = [
  {
    fleet: { name: 'sandyard_fleet_vcpus', help: 'vCPUs that live workers offer to sandboxes, by driver.' },
    worker: { name: 'sandyard_worker_vcpus', help: 'vCPUs that the worker offers to sandboxes.' },
    read: ({ vcpus }) => vcpus,
  },
  {
    fleet: { name: 'sandyard_fleet_used_vcpus', help: 'vCPUs of open runs on live workers, by driver.' },
    worker: { name: 'sandyard_worker_used_vcpus', help: 'vCPUs of open runs on the worker.' },
    read: ({ used_vcpus }) => used_vcpus,
  },
  {
    fleet: { name: 'sandyard_fleet_memory_bytes', help: 'Memory that live workers offer to sandboxes, by driver.' },
    worker: { name: 'sandyard_worker_memory_bytes', help: 'Memory that the worker offers to sandboxes.' },
    read: ({ memory_mib }) => memory_mib * MIB,
  },
  {
    fleet: { name: 'sandyard_fleet_used_memory_bytes', help: 'Memory of open runs on live workers, by driver.' },
    worker: { name: 'sandyard_worker_used_memory_bytes', help: 'Memory of open runs on the worker.' },
    read: ({ used_memory_mib }) => used_memory_mib * MIB,
  },
  {
    fleet: {
      name: 'sandyard_fleet_disk_bytes',
      help: 'What the disks of sandboxes on live workers may promise together, by driver. Absent without a limit.',
    },
    worker: {
      name: 'sandyard_worker_disk_bytes',
      help: 'What the disks of sandboxes on the worker may promise together. Absent without a limit.',
    },
    read: ({ disk_mib }) => (disk_mib === null ? null : disk_mib * MIB),
  },
  {
    fleet: {
      name: 'sandyard_fleet_used_disk_bytes',
      help: 'The sizes of sandboxes’ disks on live workers, those of stopped sandboxes included, by driver.',
    },
    worker: {
      name: 'sandyard_worker_used_disk_bytes',
      help: 'The sizes of sandboxes’ disks on the worker, those of stopped sandboxes included.',
    },
    read: ({ used_disk_mib }) => used_disk_mib * MIB,
  },
  {
    fleet: { name: 'sandyard_fleet_runs', help: 'Open runs on live workers, by driver.' },
    worker: { name: 'sandyard_worker_runs', help: 'Open runs on the worker.' },
    read: ({ runs }) => runs,
  },
]

/** What workers report about the file system with their data folder. The numbers are rounded. */
const FILE_SYSTEMS: readonly (MetricText & { readonly read: (disk: WorkerDisk) => number })[] = [
  {
    name: 'sandyard_worker_file_system_size_bytes',
    help: 'The size of the file system with the worker’s data folder.',
    read: ({ total_mib }) => total_mib,
  },
  {
    name: 'sandyard_worker_file_system_free_bytes',
    help: 'Free space on the file system with the worker’s data folder, rounded.',
    read: ({ free_mib }) => free_mib,
  },
  {
    name: 'sandyard_worker_file_system_reserve_bytes',
    help: 'The free space that sandboxes leave to the control plane (SANDYARD_DISK_RESERVE_MIB).',
    read: ({ reserve_mib }) => reserve_mib,
  },
]

/** The workers by driver. The driver of a worker that has not reported is empty. */
function byDriver(workers: readonly numbers.WorkerNumbers[]) {
  return Map.groupBy(workers, ({ driver }) => driver ?? '')
}

function sumByDriver({ workers, now }: FleetNumbers, read: Resource['read']): readonly Sample[] {
  return [...byDriver(workers)].flatMap(([driver, some]) => {
    const values = some.filter((worker) => stateOf(worker, now) === 'live').map(read)
    // A worker without a limit has no number that could be added to those of the others.
    if (values.includes(null)) return []
    return { labels: { driver }, value: values.reduce<number>((sum, value) => sum + (value ?? 0), 0) }
  })
}

function eachWorker(
  fleet: FleetNumbers,
  read: Resource['read'],
  labelsOf: (worker: numbers.WorkerNumbers) => Readonly<Record<string, string>> = () => ({}),
): readonly Sample[] {
  if (fleet.workers.length > fleet.workerSeriesMax) return []
  return fleet.workers.flatMap((worker) => {
    const value = read(worker)
    return value === null ? [] : { labels: { worker: worker.name, ...labelsOf(worker) }, value }
  })
}

/** The metrics of the installation. Only the leader shows them, so that sums over server processes are right. */
export const FLEET_METRICS: readonly FleetMetric[] = [
  {
    name: 'sandyard_workers',
    help: 'Workers that were not removed, by driver and state.',
    labelNames: ['driver', 'state'],
    read: ({ workers, now }) =>
      [...byDriver(workers)].flatMap(([driver, some]) =>
        WORKER_STATES.map((state) => {
          return { labels: { driver, state }, value: some.filter((one) => stateOf(one, now) === state).length }
        }),
      ),
  },
  ...RESOURCES.map(({ fleet, read }) => ({
    ...fleet,
    labelNames: ['driver'],
    read: (all: FleetNumbers) => sumByDriver(all, read),
  })),
  ...RESOURCES.map(({ worker, read }) => ({
    ...worker,
    labelNames: ['worker'],
    read: (all: FleetNumbers) => eachWorker(all, read),
  })),
  {
    name: 'sandyard_workers_by_disk_pressure',
    help: 'Live workers by what their file system lacks: short ones refuse new disks, critical ones stop runs that write.',
    labelNames: ['pressure'],
    read: ({ workers, now }) =>
      DISK_PRESSURES.map((pressure) => {
        const some = workers.filter((one) => one.disk?.pressure === pressure && stateOf(one, now) === 'live')
        return { labels: { pressure }, value: some.length }
      }),
  },
  ...FILE_SYSTEMS.map(({ read, ...text }) => ({
    ...text,
    labelNames: ['worker'],
    read: (all: FleetNumbers) => eachWorker(all, ({ disk }) => (disk === null ? null : read(disk) * MIB)),
  })),
  {
    name: 'sandyard_worker_state',
    help: '1 for the state that the worker has: joined (no report yet), live, silent (its lease is over) or draining.',
    labelNames: ['worker', 'driver', 'state'],
    read: (fleet) =>
      eachWorker(
        fleet,
        () => 1,
        (worker) => ({ driver: worker.driver ?? '', state: stateOf(worker, fleet.now) }),
      ),
  },
  {
    name: 'sandyard_worker_last_report_timestamp_seconds',
    help: 'When the worker’s last report was recorded.',
    labelNames: ['worker'],
    read: (fleet) =>
      eachWorker(fleet, ({ lease_expires_at }) =>
        lease_expires_at === null ? null : (lease_expires_at.getTime() - WORKER_LEASE_MS) / 1000,
      ),
  },
  {
    name: 'sandyard_open_runs',
    help: 'Runs that have begun and not ended, by the status of their sandbox.',
    labelNames: ['status'],
    read: ({ openRuns }) =>
      (['starting', 'running', 'stopping'] as const).map((status) => ({
        labels: { status },
        value: openRuns.find((row) => row.status === status)?.count ?? 0,
      })),
  },
  {
    name: 'sandyard_waiting_runs',
    help: 'Runs that have no worker: not tried yet, without capacity, or with their disk on a worker that gets no runs.',
    labelNames: ['reason'],
    read: ({ waiting }) =>
      numbers.WAITING_REASONS.map((reason) => ({
        labels: { reason },
        value: waiting.find((row) => row.reason === reason)?.count ?? 0,
      })),
  },
  {
    name: 'sandyard_waiting_runs_oldest_timestamp_seconds',
    help: 'When the oldest run that waits for this reason was requested. Absent if none waits.',
    labelNames: ['reason'],
    read: ({ waiting }) =>
      waiting.map(({ reason, oldest_at }) => ({ labels: { reason }, value: oldest_at.getTime() / 1000 })),
  },
  {
    name: 'sandyard_waiting_run_lacks',
    help: '1 for each need of the oldest run that waits for capacity, if no worker has it: vcpus, memory_mib, an ability …',
    labelNames: ['need'],
    read: ({ oldestLacks }) => {
      // The name of a volume, disk or worker is not shown, because there may be any number of them.
      const needs = oldestLacks.map(({ kind, name }) => (kind === 'resource' || kind === 'ability' ? name : kind))
      return [...new Set(needs)].map((need) => ({ labels: { need }, value: 1 }))
    },
  },
  {
    name: 'sandyard_volumes',
    help: 'Volumes by status.',
    labelNames: ['status'],
    read: ({ volumes }) => volumes.map(({ status, count }) => ({ labels: { status }, value: count })),
  },
  {
    name: 'sandyard_webhooks',
    help: 'Webhooks by state: active or paused.',
    labelNames: ['state'],
    read: ({ webhooks: { active, paused } }) => [
      { labels: { state: 'active' }, value: active },
      { labels: { state: 'paused' }, value: paused },
    ],
  },
  {
    name: 'sandyard_webhook_deliveries_waiting',
    help: 'Deliveries to active webhooks that wait to be sent or to be tried again.',
    labelNames: [],
    read: ({ webhooks: { waiting } }) => [{ labels: {}, value: waiting }],
  },
  {
    name: 'sandyard_volumes_used_bytes',
    help: 'Bytes that volumes use, as their workers reported, by status.',
    labelNames: ['status'],
    read: ({ volumes }) => volumes.map(({ status, used_bytes }) => ({ labels: { status }, value: used_bytes })),
  },
]

/**
 * Watches the file system of the worker's data folder. It reports how short the disk is, and stops the run that grows most
 * while the pressure is critical. Disks of containers and the volume pool can't grow that far; virtual machines, volumes in
 * plain folders and other programs of the machine can.
 */
import {
  chooseRunToStop,
  isPressureAtLeast,
  roundMib,
  type DiskPressure,
  type DiskWriter,
  type WorkerDisk,
} from '../../domain/workers/disk-pressure.ts'
import type { RunId, VolumeId } from '../../domain/ids.ts'
import { interruptibleSleep, type Clock, waitAtMost } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { DiskReserve } from '../disk-reserve.ts'
import type { Driver } from '../drivers/driver.ts'
import type { VolumeStorage } from '../volumes/volume-storage.ts'

export type DiskGuard = {
  /** The disk as reports show it. Undefined: it is not watched. It changes with the level, and else every 15 s. */
  reported(): WorkerDisk | undefined
  /** Watches the disk each second until the signal aborts. */
  keepWatching(signal: AbortSignal): Promise<void>
}

type DiskGuardInput = {
  readonly reserve: Pick<DiskReserve, 'measure'>
  readonly driver: Pick<Driver, 'measureDisks' | 'stop'>
  readonly storage: Pick<VolumeStorage, 'measure' | 'report'>
  /** The volumes that a run mounts. */
  readonly volumesOf: (run: RunId) => readonly VolumeId[]
  /** Called when the level has changed, or a run was stopped. */
  readonly onNews: () => void
  readonly clock: Clock
  readonly log: Log
}

const INTERVAL_MS = 1_000
const REPORT_EVERY_MS = 15_000
/**
 * Without pressure, the files of runs are measured after this time for each of them, so that a pressure that begins finds measurements within
 * the window of growth. Measuring a thousand each second took 4 % of a core (2026-11).
 */
const UNPRESSED_MS_FOR_EACH_RUN = 10
const UNPRESSED_MAX_MS = 10_000
/** A run's growth within this time decides whether it is stopped. */
const GROWTH_WINDOW_MS = 30_000
/** A stop that takes longer than this no longer delays the next measurement. */
const STOP_LIMIT_MS = 10_000

/** Makes the guard, which does nothing until `keepWatching`. */
export function makeDiskGuard(input: DiskGuardInput): DiskGuard {
  const { reserve, driver, clock, log } = input
  const growth = makeGrowthHistory(clock)
  const stopping = new Set<RunId>()
  let pressure: DiskPressure = 'none'
  let reported: WorkerDisk | undefined
  let reportedAtMs = Number.NEGATIVE_INFINITY
  let measureFromMs = Number.NEGATIVE_INFINITY

  async function check(signal: AbortSignal): Promise<void> {
    const disk = await reserve.measure(pressure)
    if (disk === null) return
    const hasChanged = disk.pressure !== pressure
    if (hasChanged || clock.monotonicMs() - reportedAtMs >= REPORT_EVERY_MS) {
      reported = { ...disk, free_mib: roundMib(disk.free_mib) }
      reportedAtMs = clock.monotonicMs()
    }
    if (hasChanged) {
      logLevel(disk, pressure)
      pressure = disk.pressure
      input.onNews()
    }
    if (pressure === 'none' && clock.monotonicMs() < measureFromMs) return
    const writers = await measureWriters(input, growth, disk.pressure)
    measureFromMs = clock.monotonicMs() + Math.min(UNPRESSED_MAX_MS, writers.length * UNPRESSED_MS_FOR_EACH_RUN)
    if (disk.pressure === 'critical') await stopLargest(writers, disk, signal)
  }

  function logLevel({ pressure: level, ...sizes }: WorkerDisk, before: DiskPressure): void {
    const fields = { pressure: level, ...sizes }
    if (level === 'critical') log.error(fields, LEVEL_MESSAGES.critical)
    else if (level === 'none') log.info(fields, LEVEL_MESSAGES.none)
    else if (isPressureAtLeast(level, before)) log.warn(fields, LEVEL_MESSAGES[level])
    else log.info(fields, `the pressure on the worker's disk has fallen: ${LEVEL_MESSAGES[level]}`)
  }

  async function stopLargest(writers: readonly DiskWriter[], disk: WorkerDisk, signal: AbortSignal): Promise<void> {
    const run = chooseRunToStop(writers.filter(({ run_id }) => !stopping.has(run_id)))
    if (run === null) return
    const writer = writers.find(({ run_id }) => run_id === run)
    log.error(
      { run_id: run, grew_bytes: writer?.grewBytes, free_mib: disk.free_mib },
      'the disk is full: stopping a run',
    )
    stopping.add(run)
    const stopped = stopRun(run).finally(() => {
      stopping.delete(run)
      input.onNews()
    })
    await waitAtMost(clock, STOP_LIMIT_MS, stopped, signal)
  }

  async function stopRun(run: RunId): Promise<void> {
    try {
      await driver.stop(run, 0, { kind: 'disk_full' })
      growth.forget(run)
    } catch (error) {
      log.error({ run_id: run, error }, 'a run that fills the disk could not be stopped; will retry')
    }
  }

  return {
    reported: () => reported,
    async keepWatching(signal) {
      while (!signal.aborted) {
        try {
          await check(signal)
        } catch (error) {
          log.warn({ error }, "the worker's disk could not be watched")
        }
        await interruptibleSleep(clock, INTERVAL_MS, signal)
      }
    },
  }
}

const LEVEL_MESSAGES = {
  none: "the worker's disk has enough free space again",
  low: "the worker's disk is nearly full: soon pulls and new disks are refused",
  short: "the worker's disk is full up to its reserve: pulls, new disks and writes to volumes are refused",
  critical: "the worker's disk is full: starts are refused, and runs whose files grow are stopped",
} as const

/** Measures the files of all runs. Volumes are measured only where nothing else bounds them, and only near the reserve. */
async function measureWriters(
  { driver, storage, volumesOf }: DiskGuardInput,
  growth: GrowthHistory,
  pressure: DiskPressure,
): Promise<readonly DiskWriter[]> {
  const volumes = new Map<string, Grown>()
  if (pressure !== 'none' && !storage.report.enforces_caps && !storage.report.is_shared)
    for (const { volume_id, used_bytes } of await storage.measure())
      volumes.set(volume_id, growth.note(volume_id, used_bytes))
  const disks = await driver.measureDisks()
  growth.keepOnly(new Set<string>([...disks.map(({ run_id }) => run_id), ...volumes.keys()]))
  return disks.map(({ run_id, takenBytes }) => {
    const files = [growth.note(run_id, takenBytes), ...volumesOf(run_id).flatMap((id) => volumes.get(id) ?? [])]
    const sum = (pick: (file: Grown) => number): number => files.reduce((all, file) => all + pick(file), 0)
    return { run_id, takenBytes: sum((file) => file.takenBytes), grewBytes: sum((file) => file.grewBytes) }
  })
}

type Grown = { readonly takenBytes: number; readonly grewBytes: number }

type GrowthHistory = {
  /** Adds a measurement. Returns it with the growth within the window. */
  note(key: string, takenBytes: number): Grown
  forget(key: string): void
  keepOnly(keys: ReadonlySet<string>): void
}

function makeGrowthHistory(clock: Pick<Clock, 'monotonicMs'>): GrowthHistory {
  const samples = new Map<string, { readonly atMs: number; readonly takenBytes: number }[]>()
  return {
    note(key, takenBytes) {
      const nowMs = clock.monotonicMs()
      const kept = (samples.get(key) ?? []).filter(({ atMs }) => nowMs - atMs <= GROWTH_WINDOW_MS)
      kept.push({ atMs: nowMs, takenBytes })
      samples.set(key, kept)
      return { takenBytes, grewBytes: Math.max(0, takenBytes - (kept[0]?.takenBytes ?? takenBytes)) }
    },
    forget: (key) => void samples.delete(key),
    keepOnly(keys) {
      for (const key of samples.keys()) if (!keys.has(key)) samples.delete(key)
    },
  }
}

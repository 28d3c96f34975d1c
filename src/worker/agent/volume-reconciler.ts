/**
 * Reconciles volumes: measures their use, enforces the desired caps, and deletes the volumes that the control plane wants
 * deleted. The storage knows which volumes exist and which caps are in force. This file only tracks what was already reported
 * to the control plane.
 */
import type { StoredVolume, SyncAnswer, SyncRequest, DesiredVolume } from '../../contract/workers/worker-protocol.ts'
import { interruptibleSleep, type Clock, NOTIFIED, waitAtMost } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { VolumeKey, WorkerVolumes } from '../volumes/volume-storage.ts'

export type VolumeReconcilerDeps = {
  readonly storage: WorkerVolumes
  readonly clock: Clock
  readonly log: Log
  /** How often volumes are measured if no file change was noted, in milliseconds. */
  readonly sampleMs: number
  /** Called when there is something new to report. Must not throw. */
  readonly onNews: () => void
}

export type VolumeReport = Pick<SyncRequest, 'storage' | 'volumes' | 'known_volumes_version'>

export type VolumeReconciler = {
  /** Returns the part of a report that describes volumes. The first call waits some seconds for the first measurement. */
  report(): Promise<VolumeReport>
  /** Applies the answer to a report: the reported measurements are not sent again, and new caps are enforced. */
  apply(report: VolumeReport, answer: Pick<SyncAnswer, 'volumes' | 'volumes_version'>): void
  /** Deletes a volume and measures the remaining ones. Rejects when the volume is in use. */
  remove(volume: VolumeKey): Promise<void>
  /** Notes that files of volumes changed. The volumes are measured within about a second. */
  noteChange(): void
  /** Measures volumes until the worker ends. */
  keepMeasuring(): Promise<void>
}

/** How long the first report waits for a measurement. Counting folders with many files can take minutes. */
const FIRST_MEASURE_MS = 5_000
/** The delay from a file change to a measurement. One measurement covers all changes in that time. */
const DEBOUNCE_MS = 500
/** How long after a failure to set a cap the worker requests all caps from the control plane again. */
const CAPS_RETRY_MS = 3_000

/** Creates the volume reconciler of a worker. `signal` ends it. */
export function makeVolumeReconciler(deps: VolumeReconcilerDeps, signal: AbortSignal): VolumeReconciler {
  const { storage, clock, log, onNews } = deps
  const first = Promise.withResolvers<void>()
  let measured: readonly StoredVolume[] | null = null
  /** Whether the last report listed no volumes. */
  let hasReportedNone = false
  let measuring: Promise<void> = Promise.resolve()
  let sleeper = new AbortController()
  let hasChanged = false
  let knownVersion: string | null = null
  let pendingCaps: readonly DesiredVolume[] | null = null
  let isApplyingCaps = false

  const measureOnce = async (): Promise<void> => {
    try {
      measured = await storage.measure()
    } catch (error) {
      log.warn({ error }, 'volumes could not be measured; will retry')
    }
    first.resolve()
  }
  /** Measures once, after all earlier measurements, so that an earlier result never replaces a later one. */
  const measure = (): Promise<void> => {
    measuring = measuring.then(measureOnce)
    return measuring
  }

  /** Enforces the latest desired caps. If a cap can't be set, the worker requests all caps again later. */
  const applyAllCaps = async (): Promise<void> => {
    if (isApplyingCaps) return
    isApplyingCaps = true
    let failures = 0
    for (let latest = pendingCaps; latest !== null; latest = pendingCaps) {
      pendingCaps = null
      failures = 0
      for (const volume of latest) if (pendingCaps === null) failures += await applyCaps(volume)
    }
    isApplyingCaps = false
    if (failures === 0) return
    await interruptibleSleep(clock, CAPS_RETRY_MS, signal)
    knownVersion = null
    onNews()
  }
  const applyCaps = async (volume: DesiredVolume): Promise<number> => {
    try {
      await storage.applyCaps(volume)
      return 0
    } catch (error) {
      log.error({ error, volume_id: volume.volume_id }, 'the cap of a volume is not in force')
      return 1
    }
  }

  return {
    async report() {
      await waitAtMost(clock, FIRST_MEASURE_MS, first.promise)
      return { storage: storage.report, volumes: measured, known_volumes_version: knownVersion }
    },
    apply(report, answer) {
      if (report.volumes !== null) hasReportedNone = report.volumes.length === 0
      if (measured === report.volumes) measured = null // a measurement that was made since then is still to be reported
      if (answer.volumes === null) return
      knownVersion = answer.volumes_version
      pendingCaps = answer.volumes
      void applyAllCaps() // never rejects: it logs every failure and requests the caps again
    },
    async remove(volume) {
      await storage.remove(volume)
      await measure()
    },
    noteChange() {
      hasChanged = true
      sleeper.abort(NOTIFIED)
    },
    async keepMeasuring() {
      for (let isAsked = false; !signal.aborted;) {
        await measure()
        if (isAsked) onNews()
        else if (hasReportedNone && measured?.length === 0) measured = null // the control plane already knows that there are no volumes
        sleeper = new AbortController()
        if (!hasChanged) await interruptibleSleep(clock, deps.sampleMs, sleeper.signal, signal)
        if (hasChanged) await interruptibleSleep(clock, DEBOUNCE_MS, signal)
        isAsked = hasChanged
        hasChanged = false
      }
    },
  }
}

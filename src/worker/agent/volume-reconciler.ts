/**
 * Reconciles volumes: measures what they use, enforces the desired caps, and deletes what must go. The storage knows which
 * volumes exist and which caps are in force. This only tracks what the control plane was told.
 */
import type { StoredVolume, SyncAnswer, SyncRequest, DesiredVolume } from '../../contract/workers/worker-protocol.ts'
import { interruptibleSleep, type Clock, NOTIFIED } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { VolumeKey, VolumeStorage } from '../volumes/volume-storage.ts'

export type VolumeReconcilerDeps = {
  readonly storage: VolumeStorage
  readonly clock: Clock
  readonly log: Log
  /** How often volumes are measured when no change is known, in milliseconds. */
  readonly sampleMs: number
  /** Called when a report would say something new. Must not throw. */
  readonly onNews: () => void
}

export type VolumeReport = Pick<SyncRequest, 'storage' | 'volumes' | 'known_volumes_version'>

export type VolumeReconciler = {
  /** What a report says about volumes. The first call waits for the first measurement, for some seconds at most. */
  report(): Promise<VolumeReport>
  /** Applies the answer to a report: what it said need not be said again, and new caps are enforced. */
  apply(report: VolumeReport, answer: Pick<SyncAnswer, 'volumes' | 'volumes_version'>): void
  /** Deletes a volume and measures what is left. Rejects when it is in use. */
  remove(volume: VolumeKey): Promise<void>
  /** Notes that files of volumes changed: they are measured within about a second. */
  noteChange(): void
  /** Measures volumes until the worker ends. */
  keepMeasuring(): Promise<void>
}

/** How long the first report waits for a measurement: folders with many files take minutes to count. */
const FIRST_MEASURE_MS = 5_000
/** From a change to its measurement: changes that come together are measured once. */
const DEBOUNCE_MS = 500
/** How long after a failure the caps are requested again. */
const CAPS_RETRY_MS = 3_000

/** Makes the reconciler of a worker; `signal` ends it. */
export function makeVolumeReconciler(deps: VolumeReconcilerDeps, signal: AbortSignal): VolumeReconciler {
  const { storage, clock, log, onNews } = deps
  const first = Promise.withResolvers<void>()
  let measured: readonly StoredVolume[] | null = null
  /** Whether the last report said that there are no volumes. */
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
      log.warn({ error }, 'volumes could not be measured; trying again')
    }
    first.resolve()
  }
  /** One after the other: a later result was measured later. */
  const measure = (): Promise<void> => {
    measuring = measuring.then(measureOnce)
    return measuring
  }

  /** Enforces the latest caps. Failed ones are requested again, so that none is silently missing. */
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
      const late = new AbortController()
      await Promise.race([first.promise, interruptibleSleep(clock, FIRST_MEASURE_MS, late.signal)])
      late.abort(NOTIFIED)
      return { storage: storage.report, volumes: measured, known_volumes_version: knownVersion }
    },
    apply(report, answer) {
      if (report.volumes !== null) hasReportedNone = report.volumes.length === 0
      if (measured === report.volumes) measured = null // reported; a later one is news
      if (answer.volumes === null) return
      knownVersion = answer.volumes_version
      pendingCaps = answer.volumes
      void applyAllCaps() // it never rejects: every failure is logged and requested again
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
        else if (hasReportedNone && measured?.length === 0) measured = null // no news, and the report stays unchanged
        sleeper = new AbortController()
        if (!hasChanged) await interruptibleSleep(clock, deps.sampleMs, AbortSignal.any([sleeper.signal, signal]))
        if (hasChanged) await interruptibleSleep(clock, DEBOUNCE_MS, signal)
        isAsked = hasChanged
        hasChanged = false
      }
    },
  }
}

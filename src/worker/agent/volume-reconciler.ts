/**
 * The worker's duty to volumes: it measures what they take, puts the caps in force that are wanted, and deletes what is
 * to go. What is there and what is in force is the storage's to know; here is only what the control plane was told.
 */
import type { StoredVolume, SyncAnswer, SyncRequest, DesiredVolume } from '../../contract/workers/worker-protocol.ts'
import { interruptibleSleep, type Clock, NOTIFIED } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { VolumeKey, VolumeStorage } from '../volumes/volume-storage.ts'

export type VolumeReconcilerDeps = {
  readonly storage: VolumeStorage
  readonly clock: Clock
  readonly log: Log
  /** How often volumes are measured when nothing is known to have changed. */
  readonly sampleMs: number
  /** Called when a sync would say something new. Must not throw. */
  readonly onNews: () => void
}

export type VolumeReport = Pick<SyncRequest, 'storage' | 'volumes' | 'known_volumes_version'>

export type VolumeReconciler = {
  /** What a sync says of volumes. The first call waits for the first measurement, for some seconds at most. */
  report(): Promise<VolumeReport>
  /** Takes an answer in: what the report said is told, and caps that are new come into force. */
  apply(report: VolumeReport, answer: Pick<SyncAnswer, 'volumes' | 'volumes_version'>): void
  /** Deletes a volume and measures what is left. Rejects when it is in use. */
  remove(volume: VolumeKey): Promise<void>
  /** Says that volumes changed here: they are measured within about a second. */
  noteChange(): void
  /** Measures volumes until the worker ends. */
  keepMeasuring(): Promise<void>
}

/** How long the first sync waits for a measurement: folders of many files take minutes to count. */
const FIRST_MEASURE_MS = 5_000
/** From a change to its measurement: many that come together are measured once. */
const DEBOUNCE_MS = 500
/** How long after caps failed they are asked for again. */
const CAPS_RETRY_MS = 3_000

/** See `VolumeReconciler`; `signal` ends the worker. */
export function makeVolumeReconciler(deps: VolumeReconcilerDeps, signal: AbortSignal): VolumeReconciler {
  const { storage, clock, log, onNews } = deps
  const first = Promise.withResolvers<void>()
  let measured: readonly StoredVolume[] | null = null
  /** Whether the last word was that there are none. */
  let toldOfNone = false
  let measuring: Promise<void> = Promise.resolve()
  let sleeper = new AbortController()
  let hasChanged = false
  let known: string | null = null
  let wanted: readonly DesiredVolume[] | null = null
  let isLimiting = false

  const measureOnce = async (): Promise<void> => {
    try {
      measured = await storage.measure()
    } catch (error) {
      log.warn({ error }, 'volumes could not be measured; it is tried again')
    }
    first.resolve()
  }
  /** One after the other: what comes later was seen later. */
  const measure = (): Promise<void> => {
    measuring = measuring.then(measureOnce)
    return measuring
  }

  /** Puts the latest caps in force. What fails is asked for again, so that it is never silently missing. */
  const limitAll = async (): Promise<void> => {
    if (isLimiting) return
    isLimiting = true
    let failures = 0
    for (let latest = wanted; latest !== null; latest = wanted) {
      wanted = null
      failures = 0
      for (const volume of latest) if (wanted === null) failures += await limit(volume)
    }
    isLimiting = false
    if (failures === 0) return
    await interruptibleSleep(clock, CAPS_RETRY_MS, signal)
    known = null
    onNews()
  }
  const limit = async (volume: DesiredVolume): Promise<number> => {
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
      return { storage: storage.report, volumes: measured, known_volumes_version: known }
    },
    apply(report, answer) {
      if (report.volumes !== null) toldOfNone = report.volumes.length === 0
      if (measured === report.volumes) measured = null // told; a later one is news
      if (answer.volumes === null) return
      known = answer.volumes_version
      wanted = answer.volumes
      void limitAll() // it never rejects: every failure is logged and asked for again
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
        else if (toldOfNone && measured?.length === 0) measured = null // no news, and the sync stays a cheap one
        sleeper = new AbortController()
        if (!hasChanged) await interruptibleSleep(clock, deps.sampleMs, AbortSignal.any([sleeper.signal, signal]))
        if (hasChanged) await interruptibleSleep(clock, DEBOUNCE_MS, signal)
        isAsked = hasChanged
        hasChanged = false
      }
    },
  }
}

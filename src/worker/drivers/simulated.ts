import type { Duplex } from 'node:stream'
import { ABILITIES } from '../../domain/abilities.ts'
import type { RunId } from '../../domain/ids.ts'
import type { Capacity, RunOutcome, ObservedRun, DesiredRun } from '../../contract/workers/worker-protocol.ts'
import type { Clock } from '../../lib/clock.ts'
import { joinSignals } from '../../lib/join-signals.ts'
import { type SandboxLogs, makeNoLogs } from '../logs/logs.ts'
import { LIFECYCLE_LINES, writeSystemLine } from '../logs/lifecycle-lines.ts'
import type { Meter } from '../metrics/meter.ts'
import type { SandboxMetrics } from '../metrics/sandbox-metrics.ts'
import type { Driver } from './driver.ts'
import { DEFAULT_BEHAVIOUR, type SimulatedBehaviour } from './simulated-behaviour.ts'
import { makeSimulatedWorld, type SimulatedRun, type SimulatedWorld } from './simulated-world.ts'
import { SnapshotFailure } from '../snapshot-failure.ts'
import { StartError } from '../start-error.ts'
import { requireSecrets } from './shared/desired-run.ts'
import { makeStartStopwatch } from './shared/start-stopwatch.ts'

type SimulatedInput = {
  readonly clock: Clock
  /** The machine to use. Default: a new machine. */
  readonly world?: SimulatedWorld
  /** The capacity to report. Default: that of a large machine. */
  readonly capacity?: Capacity
  /** The reported size of a disk for which a sandbox names no size. No disk is made. */
  readonly defaultDiskMib?: number
  /** Where to write log lines about the runs. By default none are written. */
  readonly logs?: Pick<SandboxLogs, 'writerOf'>
  /** Where to sample its runs, which use nothing. By default they aren't sampled. */
  readonly metrics?: Pick<SandboxMetrics, 'begin' | 'end'>
  /** Chooses the behaviour of each run. Default: `DEFAULT_BEHAVIOUR`. */
  readonly behaviourOf?: (run: DesiredRun) => SimulatedBehaviour
}

/**
 * Creates a driver that runs nothing, for tests, benchmarks and trying the API. Its reports and logs say that it is
 * simulated.
 */
export function makeSimulatedDriver(input: SimulatedInput): Driver {
  const { clock, world = makeSimulatedWorld(), capacity = LARGE_MACHINE, behaviourOf = () => DEFAULT_BEHAVIOUR } = input
  const { logs = makeNoLogs(), metrics, defaultDiskMib: default_disk_mib = 1 } = input
  const closing = new AbortController()
  const starts = new Map<RunId, { readonly done: Promise<void>; readonly abort: AbortController }>()
  const ends = new Set<Promise<void>>()
  const watching = new Set<() => void>()

  // A start can't outlive its worker process, so the starts that an earlier driver left in flight have failed.
  const cutShort: RunOutcome = {
    kind: 'start_failed',
    reason: 'cancelled',
    message: 'the worker ended during the start',
  }
  for (const [id, { observed }] of world.runs) if (observed.phase === 'starting') world.end(id, cutShort)

  const openLogs = new Set<RunId>()
  const sampled = new Set<RunId>()
  /** Notes how long a run ran, and writes its log. */
  const follow = (id: RunId): void => {
    const run = world.runs.get(id)
    if (run === undefined) return
    const { desired, observed, startedAtMs } = run
    if (observed.phase === 'ended' && observed.ran_ms === undefined && startedAtMs !== null)
      world.runs.set(id, {
        ...run,
        observed: { ...observed, ran_ms: Math.round(clock.monotonicMs() - startedAtMs) },
      })
    const writer = logs.writerOf(desired.sandbox_id)
    if (observed.phase !== 'ended' && !openLogs.has(id)) {
      openLogs.add(id)
      writer.openRun()
    } else if (observed.outcome !== undefined && openLogs.delete(id)) {
      writeSystemLine(writer, desired.spec.runtime.log_level, LIFECYCLE_LINES.ended(observed.outcome))
      writer.closeRun()
    }
    if (observed.phase === 'running' && !sampled.has(id)) {
      sampled.add(id)
      const { sandbox_id, org_id } = desired
      const intervalMs = desired.spec.runtime.metrics_sample_interval_ms ?? DEFAULT_SAMPLE_MS
      metrics?.begin({ run_id: id, sandbox_id, org_id, intervalMs, isAdopted: false }, () => IDLE_METER)
    } else if (observed.phase === 'ended' && sampled.delete(id)) metrics?.end(id)
  }
  for (const id of world.runs.keys()) follow(id)
  world.onChange.add(follow)

  const put = (id: RunId, run: SimulatedRun): void => {
    world.runs.set(id, run)
    for (const call of world.onChange) call(id)
  }
  const observe = ({ desired, startedAtMs, observed }: SimulatedRun): ObservedRun => {
    const { idle_timeout_secs } = desired.spec.lifecycle
    const isExpired =
      observed.phase === 'running' &&
      idle_timeout_secs !== null &&
      startedAtMs !== null &&
      clock.monotonicMs() - startedAtMs >= idle_timeout_secs * 1000
    return isExpired ? { ...observed, is_idle_expired: true } : observed
  }
  const begin = async (desired: DesiredRun, signal: AbortSignal): Promise<void> => {
    const behaviour = behaviourOf(desired)
    const observed: ObservedRun = {
      run_id: desired.run_id,
      sandbox_id: desired.sandbox_id,
      phase: 'starting',
      facts: { isolation: ISOLATION },
    }
    const run = { desired, startedAtMs: null, observed }
    put(desired.run_id, run)
    const stopwatch = makeStartStopwatch(clock)
    try {
      requireSecrets(desired)
      await stopwatch.measure('runtime', waitForStart(behaviour, signal))
    } catch (error) {
      if (error instanceof StartError) {
        const { reason, message } = error
        world.runs.set(desired.run_id, { ...run, observed: { ...observed, start_phases: stopwatch.phases() } })
        world.end(desired.run_id, { kind: 'start_failed', reason, message })
      }
      throw error
    }
    // If the run was ended during its start (`SimulatedWorld.end`), it stays ended.
    if (world.runs.get(desired.run_id)?.observed.phase !== 'starting')
      throw new StartError('host', 'the run ended while it started')
    world.stored.add(desired.sandbox_id)
    writeSystemLine(logs.writerOf(desired.sandbox_id), desired.spec.runtime.log_level, LIFECYCLE_LINES.started)
    const { memoryKills } = behaviour
    const running: ObservedRun = {
      ...observed,
      phase: 'running',
      start_phases: stopwatch.phases(),
      ...(memoryKills > 0 ? { memory_kills: memoryKills } : {}),
    }
    put(desired.run_id, { ...run, startedAtMs: clock.monotonicMs(), observed: running })
    if (behaviour.endsAfterMs !== null) trackEnd(endLater(desired.run_id, behaviour.endsAfterMs, behaviour.outcome))
  }
  const waitForStart = async (behaviour: SimulatedBehaviour, signal: AbortSignal): Promise<void> => {
    const cancelled = (): StartError => new StartError('cancelled', 'the start was cancelled')
    if (signal.aborted) throw cancelled()
    try {
      if (behaviour.startDelayMs > 0) await clock.sleep(behaviour.startDelayMs, signal)
    } catch (error) {
      throw signal.aborted ? cancelled() : error
    }
    if (behaviour.startFailure !== null)
      throw new StartError(behaviour.startFailure.reason, behaviour.startFailure.message)
  }
  const endLater = async (id: RunId, ms: number, outcome: RunOutcome): Promise<void> => {
    try {
      await clock.sleep(ms, closing.signal)
    } catch (error) {
      if (!closing.signal.aborted) throw error
      return
    }
    world.end(id, outcome)
  }
  const trackEnd = (work: Promise<void>): void => {
    const kept = work.finally(() => ends.delete(kept))
    ends.add(kept)
  }
  const end = async (id: RunId, graceMs: number, outcome: RunOutcome = { kind: 'stopped' }): Promise<void> => {
    const start = starts.get(id)
    start?.abort.abort(new Error('the run was stopped'))
    await Promise.allSettled([start?.done])
    const run = world.runs.get(id)
    if (run === undefined || run.observed.phase === 'ended') return
    put(id, { ...run, observed: { ...run.observed, phase: 'stopping' } })
    const { sandbox_id, spec } = run.desired
    writeSystemLine(logs.writerOf(sandbox_id), spec.runtime.log_level, LIFECYCLE_LINES.stopRequested)
    const { ignoresTerm, stopDelayMs } = behaviourOf(run.desired)
    const waitMs = ignoresTerm ? graceMs : Math.min(stopDelayMs, graceMs)
    if (waitMs > 0) await clock.sleep(waitMs)
    world.end(id, outcome)
  }

  return {
    name: 'simulated',
    probe: () =>
      Promise.resolve({
        report: { name: 'simulated', isolation: ISOLATION, abilities: ABILITIES, images: [], default_disk_mib },
        capacity,
      }),
    list: () => Promise.resolve([...world.runs.values()].map(observe)),
    listStored: () => Promise.resolve([...world.stored]),
    async start(desired, signal) {
      const inFlight = starts.get(desired.run_id)
      if (inFlight !== undefined) return await inFlight.done
      const known = world.runs.get(desired.run_id)
      if (known !== undefined) return throwIfEnded(known.observed)
      const abort = new AbortController()
      const either = joinSignals(signal, abort.signal)
      const done = begin(desired, either.signal).finally(() => {
        either[Symbol.dispose]()
        starts.delete(desired.run_id)
      })
      starts.set(desired.run_id, { done, abort })
      await done
    },
    setSecrets(id, given) {
      const run = world.runs.get(id)
      if (run?.observed.phase === 'running') world.runs.set(id, { ...run, desired: { ...run.desired, ...given } })
      return Promise.resolve()
    },
    stop: end,
    async remove(id) {
      await end(id, 0)
      if (world.runs.delete(id)) for (const call of world.onChange) call(id)
    },
    discard(sandbox) {
      const held = [...world.runs.values()].find((run) => run.desired.sandbox_id === sandbox)
      if (held !== undefined)
        return Promise.reject(new Error(`sandbox ${sandbox} has run ${held.desired.run_id}: remove it first`))
      world.stored.delete(sandbox)
      return Promise.resolve()
    },
    snapshots: {
      take({ snapshot_id, sandbox_id, records_integrity }) {
        if (!world.stored.has(sandbox_id))
          return Promise.reject(new SnapshotFailure('no_disk', 'the sandbox has no disk yet: it was never started'))
        const run = [...world.runs.values()].find(({ desired }) => desired.sandbox_id === sandbox_id)
        world.snapshots.add(snapshot_id)
        return Promise.resolve({
          disk_bytes: default_disk_mib * 1024 * 1024,
          taken_bytes: 0,
          image_reference: run?.desired.spec.image ?? 'simulated',
          image_digest: NO_DIGEST,
          sha256: records_integrity ? NO_DIGEST.slice('sha256:'.length) : null,
        })
      },
      discard(snapshot) {
        world.snapshots.delete(snapshot)
        return Promise.resolve()
      },
    },
    measureDisks: () => Promise.resolve([]),
    openChannel(id): Promise<Duplex> {
      const isRunning = world.runs.get(id)?.observed.phase === 'running'
      return Promise.reject(
        new Error(isRunning ? 'a simulated sandbox runs nothing and takes no commands' : `run ${id} is not running`),
      )
    },
    watch(onChange) {
      world.onChange.add(onChange)
      watching.add(onChange)
      return () => {
        world.onChange.delete(onChange)
        watching.delete(onChange)
      }
    },
    async close() {
      closing.abort()
      world.onChange.delete(follow)
      for (const onChange of watching) world.onChange.delete(onChange)
      for (const start of starts.values()) start.abort.abort(new Error('the worker is closing'))
      await Promise.allSettled([...ends, ...[...starts.values()].map((start) => start.done)])
    },
  }
}

const DEFAULT_SAMPLE_MS = 1_000

/** Measures a sandbox that uses nothing. */
const IDLE_METER: Meter = {
  readCpuNs: () => 0,
  readMemoryBytes: () => 0,
  readRest: () => ({ processes: 0, droppableBytes: 0, diskBytes: 0, receivedBytes: 0, sentBytes: 0 }),
  close: () => undefined,
}

const LARGE_MACHINE: Capacity = { vcpus: 256, memory_mib: 1_048_576, disk_mib: 1_073_741_824 }

/** The hash of nothing. */
const NO_DIGEST = 'sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'
const ISOLATION = 'SIMULATED: no isolation, nothing runs'

function throwIfEnded(observed: ObservedRun): void {
  if (observed.phase !== 'ended') return
  const { outcome } = observed
  if (outcome?.kind === 'start_failed') throw new StartError(outcome.reason, outcome.message)
  throw new StartError('host', 'the run has ended')
}

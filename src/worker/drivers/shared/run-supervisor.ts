import type { DesiredRun, ObservedRun, RunOutcome, RunPhase } from '../../../contract/workers/worker-protocol.ts'
import type { RunId, SandboxId } from '../../../domain/ids.ts'
import type { Clock } from '../../../lib/clock.ts'
import { makeKeyedMutex } from '../../../lib/turns/keyed-mutex.ts'
import type { Log } from '../../../lib/log.ts'
import { LIFECYCLE_LINES, writeSystemLine } from '../../logs/lifecycle-lines.ts'
import type { SandboxLogs } from '../../logs/logs.ts'
import type { Meter } from '../../metrics/meter.ts'
import type { SandboxMetrics } from '../../metrics/sandbox-metrics.ts'
import { readBootId } from '../../processes/process-identity.ts'
import { StartError } from '../../start-error.ts'
import type { Driver } from '../driver.ts'
import { logFieldsOf, type RunRecord, type RunRecords } from './run-records.ts'
import { measureRun, readEndedMsAgo } from './run-time.ts'
import { makeRunWatch } from './run-watch.ts'
import { makeStartStopwatch, type StartStopwatch } from './start-stopwatch.ts'
import { makeStartsInFlight } from './starts-in-flight.ts'

/** The phase of a run, and its outcome if it has ended. */
export type ObservedPhase =
  { readonly phase: Exclude<RunPhase, 'ended'> } | { readonly phase: 'ended'; readonly outcome: RunOutcome }

/**
 * The functions of one driver that start, observe, stop and clean up a run. The supervisor decides when to call them. It never
 * makes two changes to one run at the same time, and it repeats a change that failed. Therefore each function must work on a
 * run that is half created or half removed.
 */
export type RunOperations<Run extends RunRecord<unknown>> = {
  /**
   * Creates the record of a new run. While another run holds a resource that this run needs, rejects with `StartError`.
   * In that case nothing is recorded, and the start may be repeated.
   */
  newRecord(desired: DesiredRun): Promise<Run>
  /**
   * Starts the run. Writes its record with `started` once the sandbox accepts commands. If this function rejects, the
   * supervisor records the failure and calls `readLastOutput` and `release`. Measures its phases with the stopwatch.
   */
  start(desired: DesiredRun, record: Run, attempt: StartAttempt): Promise<void>
  /**
   * Derives a run's phase from its record and from the state of the machine. `isBeingStarted` is true while the run's start is
   * in flight.
   */
  observe(record: Run, isBeingStarted: boolean): Promise<ObservedPhase>
  /** Whether a running sandbox was unused for its whole idle timeout. */
  isIdle(record: Run): boolean | Promise<boolean>
  /** How many of a run's processes the kernel killed because memory ran out, if the driver counts them. */
  memoryKillsOf?(record: Run): number
  /** Ends a run's processes: SIGTERM, then SIGKILL after `graceMs`. */
  stopProcesses(record: Run, graceMs: number): Promise<void>
  /**
   * Reads the last output of a run that ended with `outcome`. The supervisor writes the end of the run to the sandbox's
   * log only after this output.
   */
  readLastOutput(record: Run, outcome: RunOutcome): Promise<void>
  /** Kills the remaining processes of a run and frees all its resources except its record and its writable layer. */
  release(record: Run): Promise<void>
  /** Opens a meter of a started run. May throw if the run has ended. */
  openMeter(record: Run): Meter
  /** Continues to read the output of a run that an earlier process of the worker started. */
  resumeOutput(record: Run): void
  /** Drops this process's in-memory state of a run whose record was deleted. */
  forget(run: RunId): void
}

/** One attempt to start a run: what cancels it, and what measures it. */
export type StartAttempt = { readonly signal: AbortSignal; readonly stopwatch: StartStopwatch }

/** Starts, watches and ends a driver's runs. It implements the methods of `Driver` that are the same for every driver. */
type RunSupervisor = Pick<Driver, 'list' | 'start' | 'stop' | 'remove' | 'watch'> & {
  /** Throws while a run of the sandbox is recorded. `Driver.discard` needs this check. */
  assertNoRunOf(sandbox: SandboxId): void
  /** Checks the runs soon, without waiting for the next poll. */
  checkSoon(): void
  /** Stops watching and cancels the starts in flight. Runs keep running. */
  close(): Promise<void>
}

type RunSupervisorInput<Run extends RunRecord<unknown>> = {
  readonly records: RunRecords<Run>
  readonly operations: RunOperations<Run>
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly metrics: Pick<SandboxMetrics, 'begin' | 'end'>
  readonly clock: Clock
  readonly log: Log
}

/**
 * Opens the supervisor and adopts the runs of earlier worker processes. Live runs keep running, and ended runs are
 * released. Interrupted starts are undone and their records are deleted, so that the control plane requests these
 * starts again.
 */
export async function openRunSupervisor<Run extends RunRecord<unknown>>({
  records,
  operations,
  logs,
  metrics,
  clock,
  log,
}: RunSupervisorInput<Run>): Promise<RunSupervisor> {
  const bootId = await readBootId()
  const mutex = makeKeyedMutex()
  /** The measured starts of this process. They are measurements and no state, so nothing depends on them. */
  const measuredStarts = new Map<RunId, StartStopwatch>()
  const starts = makeStartsInFlight(mutex, () => {
    watch.checkSoon()
  })

  const beginSamples = (record: Run, { isAdopted }: { readonly isAdopted: boolean }): void => {
    const { run_id, sandbox_id, org_id, name, org, sample_interval_ms: intervalMs = null } = record
    if (intervalMs === null) return
    const names = name === undefined || org === undefined ? {} : { name, org }
    metrics.begin({ run_id, sandbox_id, org_id, ...names, intervalMs, isAdopted }, () => operations.openMeter(record))
  }
  /**
   * Records a run's outcome and frees all its resources. May be repeated, and writes the run's end to the sandbox's log
   * only once.
   */
  const recordEnd = async (record: Run, outcome: RunOutcome, endedMsAgo = 0): Promise<Run> => {
    await operations.readLastOutput(record, outcome)
    metrics.end(record.run_id)
    const ended: Run = { ...record, outcome, ...measureRun(record, bootId, endedMsAgo) }
    records.write(ended)
    const writer = logs.writerOf(record.sandbox_id)
    if (record.outcome === null) writeSystemLine(writer, record.log_level, LIFECYCLE_LINES.ended(outcome))
    writer.closeRun()
    await operations.release(ended)
    const released: Run = { ...ended, is_released: true }
    records.write(released)
    return released
  }
  /** Observes a run. A run that ends because of a stop has the outcome of that stop. */
  const observePhase = async (record: Run, isBeingStarted: boolean): Promise<ObservedPhase> => {
    const phase = await operations.observe(record, isBeingStarted)
    if (phase.phase !== 'ended' || phase.outcome.kind !== 'stopped') return phase
    return { phase: 'ended', outcome: record.outcome ?? record.stop_outcome ?? phase.outcome }
  }
  const releaseIfEnded = async (record: Run, endedMsAgo = 0): Promise<Run> => {
    if (record.is_released) return record
    const observed = await observePhase(record, false)
    return observed.phase === 'ended' ? await recordEnd(record, observed.outcome, endedMsAgo) : record
  }
  /** Releases a run if it has ended. Does nothing to a run that is starting, live or unknown. */
  const releaseEnded = async (run: RunId): Promise<void> => {
    await mutex.run(run, async () => {
      const record = starts.has(run) ? null : records.read(run)
      if (record !== null) await releaseIfEnded(record)
    })
  }

  const observe = async (record: Run): Promise<ObservedRun> => {
    const { run_id, sandbox_id, facts } = record
    const phase = await observePhase(record, starts.has(run_id))
    const isIdle = phase.phase === 'running' && (await operations.isIdle(record))
    const measured = phase.phase === 'starting' ? undefined : measuredStarts.get(run_id)
    const memory_kills = operations.memoryKillsOf?.(record) ?? 0
    return {
      run_id,
      sandbox_id,
      ...phase,
      ...(phase.phase === 'ended' ? measureRun(record, bootId) : {}),
      facts,
      ...(isIdle ? { is_idle_expired: true } : {}),
      ...(memory_kills > 0 ? { memory_kills } : {}),
      ...(measured === undefined ? {} : { start_phases: measured.phases(), start_age_ms: measured.ageMs() }),
    }
  }
  // Reads each record, and whether its start is in flight, at the same instant. If the start ended in between, it would
  // look like an interrupted start.
  const observeAll = (): Promise<readonly ObservedRun[]> => Promise.all(records.list().map(observe))

  const adopt = async (record: Run): Promise<void> => {
    // A start is interrupted if its record has no `started`. The outcome is already `lost` if an earlier process began
    // to undo the start and was killed.
    if (record.started === null && (record.outcome === null || record.outcome.kind === 'lost')) {
      await recordEnd(record, { kind: 'lost', message: 'the worker ended while the sandbox was starting' })
      await records.delete(record.run_id)
      return
    }
    const { is_released } = await releaseIfEnded(record, await readEndedMsAgo(records.endFileOf(record.run_id), clock))
    if (is_released) return
    logs.writerOf(record.sandbox_id).openRun()
    operations.resumeOutput(record)
    beginSamples(record, { isAdopted: true })
  }

  const start = async (desired: DesiredRun, signal: AbortSignal): Promise<void> => {
    const known = records.read(desired.run_id)
    if (known !== null) {
      throwIfEnded(await operations.observe(known, false))
      return
    }
    for (const other of records.listOf(desired.sandbox_id)) if (!other.is_released) await releaseEnded(other.run_id)
    const record = await operations.newRecord(desired)
    records.write(record)
    logs.writerOf(record.sandbox_id).openRun()
    const stopwatch = makeStartStopwatch(clock)
    try {
      await operations.start(desired, record, { signal, stopwatch })
      beginSamples(records.read(record.run_id) ?? record, { isAdopted: false })
      measuredStarts.set(record.run_id, stopwatch)
      writeSystemLine(
        logs.writerOf(record.sandbox_id),
        record.log_level,
        LIFECYCLE_LINES.startPhases(stopwatch.phases()),
      )
    } catch (error) {
      const failure = startErrorOf(error, signal)
      const { reason, message } = failure
      measuredStarts.set(record.run_id, stopwatch)
      const about = logFieldsOf(record)
      // The control plane logs every failed start in one line. What the request caused needs no more than that.
      if (failure.isOfRequest) log.debug({ ...about, reason, error: failure }, 'start failed')
      else log.warn({ ...about, reason, error: failure }, 'start failed')
      try {
        const latest = records.read(record.run_id) ?? record // the start may have changed its record
        await recordEnd(latest, { kind: 'start_failed', reason, message })
      } catch (left) {
        // The outcome is recorded. Every later check of the runs tries again to release the remaining resources.
        log.error({ ...about, error: left }, 'cleaning up after a failed start failed')
      }
      throw failure
    }
  }

  /** Stops a run and returns its last record, or null for an unknown run. */
  const stop = async (run: RunId, graceMs: number, outcome: RunOutcome = { kind: 'stopped' }): Promise<Run | null> => {
    await starts.cancel(run)
    const stopped = await mutex.run(run, async () => {
      const read = records.read(run)
      const record = read === null ? null : await releaseIfEnded(read)
      if (record === null || record.is_released) return record
      const stopping: Run = { ...record, is_stop_requested: true, stop_outcome: outcome }
      records.write(stopping)
      if (!record.is_stop_requested)
        writeSystemLine(logs.writerOf(record.sandbox_id), record.log_level, LIFECYCLE_LINES.stopRequested)
      watch.checkSoon()
      await operations.stopProcesses(stopping, graceMs)
      return await recordEnd(stopping, outcome)
    })
    watch.checkSoon()
    return stopped
  }

  for (const record of records.list()) await adopt(record)
  const watch = makeRunWatch({ list: observeAll, releaseEnded, endsFolder: records.endsFolder, clock, log })

  return {
    async list() {
      const observed = await observeAll()
      watch.noteListed(observed)
      return observed
    },
    start: (desired, signal) => starts.start(desired.run_id, signal, (either) => start(desired, either)),
    async stop(run, graceMs, outcome) {
      await stop(run, graceMs, outcome)
    },
    async remove(run) {
      if ((await stop(run, 0)) === null) return
      await mutex.run(run, () => records.delete(run))
      measuredStarts.delete(run)
      operations.forget(run)
      watch.checkSoon()
    },
    watch: (onChange) => watch.subscribe(onChange),
    assertNoRunOf(sandbox) {
      const [held] = records.listOf(sandbox)
      if (held !== undefined) throw new Error(`sandbox ${sandbox} has run ${held.run_id}: remove it first`)
    },
    checkSoon: () => {
      watch.checkSoon()
    },
    async close() {
      await watch.close()
      await starts.close()
    },
  }
}

/** Throws if a run has ended. If the run's start had failed, throws the recorded failure. */
function throwIfEnded(observed: ObservedPhase): void {
  if (observed.phase !== 'ended') return
  const { outcome } = observed
  if (outcome.kind === 'start_failed') throw new StartError(outcome.reason, outcome.message)
  throw new StartError('host', 'the run has ended')
}

function startErrorOf(error: unknown, signal: AbortSignal): StartError {
  if (signal.aborted) return new StartError('cancelled', 'the start was cancelled', error)
  return error instanceof StartError ? error : new StartError('host', 'the worker could not start the sandbox', error)
}

import type { DesiredRun, ObservedRun, RunOutcome, RunPhase } from '../../../contract/workers/worker-protocol.ts'
import type { RunId, SandboxId } from '../../../domain/ids.ts'
import type { Clock } from '../../../lib/clock.ts'
import { makeKeyedMutex } from '../../../lib/keyed-mutex.ts'
import type { Log } from '../../../lib/log.ts'
import { LIFECYCLE_LINES } from '../../logs/lifecycle-lines.ts'
import type { SandboxLogs } from '../../logs/logs.ts'
import { StartError } from '../../start-error.ts'
import type { Driver } from '../driver.ts'
import type { RunRecord, RunRecords } from './run-records.ts'
import { makeRunWatch } from './run-watch.ts'
import { makeStartsInFlight } from './starts-in-flight.ts'

/** What a run is doing, and how it ended. */
export type ObservedPhase =
  { readonly phase: Exclude<RunPhase, 'ended'> } | { readonly phase: 'ended'; readonly outcome: RunOutcome }

/**
 * What a driver fills in: how one run is started, observed, stopped and cleaned up. The supervisor decides when. It
 * calls the changing functions for one run at a time, and repeats one that failed. So each must cope with a run that is
 * half made or half gone.
 */
export type RunOperations<Run extends RunRecord<unknown>> = {
  /**
   * Creates the record of a run of which nothing exists yet. Rejects with `StartError` while another run holds what this
   * one needs; then nothing is recorded and the start may be repeated.
   */
  newRecord(desired: DesiredRun): Promise<Run>
  /**
   * Starts the run, and writes its record with `started` once its sandbox accepts commands. When this rejects, the
   * supervisor records the failure and calls `readLastOutput` and `release`.
   */
  start(desired: DesiredRun, record: Run, signal: AbortSignal): Promise<void>
  /** Derives a run's phase from its record and from what the machine shows. `isBeingStarted`: its start is in flight. */
  observe(record: Run, isBeingStarted: boolean): Promise<ObservedPhase>
  /** Whether a running run was unused for its sandbox's whole idle timeout. */
  isIdle(record: Run): boolean | Promise<boolean>
  /** Ends a run's processes: SIGTERM, then SIGKILL after `graceMs`. */
  stopProcesses(record: Run, graceMs: number): Promise<void>
  /** Reads the last output of a run that ended with `outcome`, so that the log tells the end after it. */
  readLastOutput(record: Run, outcome: RunOutcome): Promise<void>
  /** Kills what still lives of a run and frees everything that it holds, except its record and its writable layer. */
  release(record: Run): Promise<void>
  /** Continues to read the output of a run that an earlier worker started. */
  resumeOutput(record: Run): void
  /** Drops what this process remembers of a run whose record was deleted. */
  forget(run: RunId): void
}

/** Runs the lives of a driver's runs: the part of `Driver` that is the same for every driver. */
type RunSupervisor = Pick<Driver, 'list' | 'start' | 'stop' | 'remove' | 'watch'> & {
  /** Rejects while a run of the sandbox is on record, as `Driver.discard` must. */
  assertNoRunOf(sandbox: SandboxId): Promise<void>
  /** Looks at the runs now instead of at the next poll. */
  checkSoon(): void
  /** Stops watching, and cancels the starts in flight. Runs go on. */
  close(): Promise<void>
}

type RunSupervisorInput<Run extends RunRecord<unknown>> = {
  readonly records: RunRecords<Run>
  readonly operations: RunOperations<Run>
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly clock: Clock
  readonly log: Log
}

/**
 * Adopts the runs that earlier workers left, then supervises. Runs that live go on, ended ones are released, and starts
 * that were cut short are undone and forgotten: the control plane asks for them again.
 */
export async function openRunSupervisor<Run extends RunRecord<unknown>>({
  records,
  operations,
  logs,
  clock,
  log,
}: RunSupervisorInput<Run>): Promise<RunSupervisor> {
  const mutex = makeKeyedMutex()
  const starts = makeStartsInFlight(mutex, () => {
    watch.checkSoon()
  })

  /** Records an outcome and frees everything that the run holds. May be repeated; the log tells the end once. */
  const recordEnd = async (record: Run, outcome: RunOutcome): Promise<Run> => {
    await operations.readLastOutput(record, outcome)
    const ended: Run = { ...record, outcome }
    await records.write(ended)
    const writer = logs.writerOf(record.sandbox_id)
    if (record.outcome === null) writer.system(LIFECYCLE_LINES.ended(outcome))
    writer.closeRun()
    await operations.release(ended)
    const released: Run = { ...ended, is_released: true }
    await records.write(released)
    return released
  }
  const releaseIfEnded = async (record: Run): Promise<Run> => {
    if (record.is_released) return record
    const observed = await operations.observe(record, false)
    return observed.phase === 'ended' ? await recordEnd(record, observed.outcome) : record
  }
  /** Leaves alone a run that is being started, one that lives, and one that is unknown. */
  const releaseEnded = async (run: RunId): Promise<void> => {
    await mutex.run(run, async () => {
      const record = starts.has(run) ? null : await records.read(run)
      if (record !== null) await releaseIfEnded(record)
    })
  }

  const observe = async (listed: Run): Promise<ObservedRun | null> => {
    // A start that ended since the record was listed has written its end: the listed record looks like one cut short.
    const isStale = listed.started === null && !starts.has(listed.run_id)
    const record = isStale ? await records.read(listed.run_id) : listed
    if (record === null) return null
    const { run_id, sandbox_id, facts } = record
    const phase = await operations.observe(record, starts.has(run_id))
    const isIdle = phase.phase === 'running' && (await operations.isIdle(record))
    return { run_id, sandbox_id, ...phase, facts, ...(isIdle ? { is_idle_expired: true } : {}) }
  }
  const list = async (): Promise<readonly ObservedRun[]> => {
    const observed = await Promise.all((await records.list()).map(observe))
    return observed.filter((run) => run !== null)
  }

  const adopt = async (record: Run): Promise<void> => {
    // A start whose undoing was cut short in turn has the outcome `lost` already.
    if (record.started === null && (record.outcome === null || record.outcome.kind === 'lost')) {
      await recordEnd(record, { kind: 'lost', message: 'the worker ended while the sandbox was starting' })
      await records.delete(record.run_id)
      return
    }
    const { is_released } = await releaseIfEnded(record)
    if (is_released) return
    logs.writerOf(record.sandbox_id).openRun()
    operations.resumeOutput(record)
  }

  const start = async (desired: DesiredRun, signal: AbortSignal): Promise<void> => {
    const known = await records.read(desired.run_id)
    if (known !== null) {
      throwIfEnded(await operations.observe(known, false))
      return
    }
    for (const other of await records.list())
      if (other.sandbox_id === desired.sandbox_id && !other.is_released) await releaseEnded(other.run_id)
    const record = await operations.newRecord(desired)
    await records.write(record)
    logs.writerOf(record.sandbox_id).openRun()
    try {
      await operations.start(desired, record, signal)
    } catch (error) {
      const failure = startErrorOf(error, signal)
      const { reason, message } = failure
      log.warn({ run_id: record.run_id, reason, err: failure }, 'start failed')
      try {
        await recordEnd(record, { kind: 'start_failed', reason, message })
      } catch (left) {
        // The outcome is on record, and every look at the runs tries again to release the rest.
        log.error({ run_id: record.run_id, err: left }, 'cleaning up after a failed start failed')
      }
      throw failure
    }
  }

  /** Stops a run and returns its last record; null for an unknown run. */
  const stop = async (run: RunId, graceMs: number): Promise<Run | null> => {
    await starts.cancel(run)
    const stopped = await mutex.run(run, async () => {
      const read = await records.read(run)
      const record = read === null ? null : await releaseIfEnded(read)
      if (record === null || record.is_released) return record
      const stopping: Run = { ...record, is_stop_requested: true }
      await records.write(stopping)
      if (!record.is_stop_requested) logs.writerOf(record.sandbox_id).system(LIFECYCLE_LINES.stopRequested)
      watch.checkSoon()
      await operations.stopProcesses(stopping, graceMs)
      return await recordEnd(stopping, { kind: 'stopped' })
    })
    watch.checkSoon()
    return stopped
  }

  for (const record of await records.list()) await adopt(record)
  const watch = makeRunWatch({ list, releaseEnded, endsFolder: records.endsFolder, clock, log })

  return {
    list,
    start: (desired, signal) => starts.start(desired.run_id, signal, (either) => start(desired, either)),
    async stop(run, graceMs) {
      await stop(run, graceMs)
    },
    async remove(run) {
      if ((await stop(run, 0)) === null) return
      await mutex.run(run, () => records.delete(run))
      operations.forget(run)
      watch.checkSoon()
    },
    watch: (onChange) => watch.subscribe(onChange),
    async assertNoRunOf(sandbox) {
      const held = (await records.list()).find((record) => record.sandbox_id === sandbox)
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

/** The start of a known run succeeds unless the run has ended; then it fails as it did. */
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

import type { RunId } from '../../../../../domain/ids.ts'
import { interruptibleSleep, type Clock } from '../../../../../lib/clock.ts'
import type { Log } from '../../../../../lib/log.ts'
import { LIFECYCLE_LINES, writeSystemLine } from '../../../../logs/lifecycle-lines.ts'
import type { SandboxLogs } from '../../../../logs/logs.ts'
import type { KernelLog, MemoryKill } from '../../../../processes/kernel-log.ts'
import { logFieldsOf } from '../../../shared/run-records.ts'
import type { Cgroups } from '../../cgroups/cgroups.ts'
import { describeMemoryKills } from '../../cgroups/describe-memory-kills.ts'
import { containerIdOf, type OciRunRecord, type OciRunRecords } from '../run-records.ts'

/**
 * The processes of runs that the kernel killed because memory ran out. Each kill is told in the sandbox's log and in the
 * program's log. The kernel's counter of a cgroup shows how many there were, its log shows which.
 */
export type MemoryKills = {
  /** Reads the kernel's counter of a run now, and tells new kills. Returns the number of kills so far. */
  check(run: RunId): number
  /** Whether the kernel killed a process of an ended run just before the run's end. */
  endedByKill(record: OciRunRecord): Promise<boolean>
  /**
   * Begins to watch a run for a command. The returned function describes the run's latest kill. It returns null if there was
   * none since then.
   */
  watch(run: RunId): () => string | null
  /** Begins to count at the counter's present value: an earlier worker process has told those kills. */
  adopt(record: OciRunRecord): void
  /** The number of kills to report to the control plane. It changes at most once a minute. */
  reportedOf(run: RunId): number
  forget(run: RunId): void
  close(): Promise<void>
}

type Deps = {
  readonly cgroups: Cgroups
  readonly kernelLog: KernelLog
  /** Reads how many processes of the machine the kernel has killed for memory. Null if the kernel doesn't say. */
  readonly countKills: () => number | null
  readonly records: Pick<OciRunRecords, 'read' | 'list' | 'containerIdOf'>
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly clock: Clock
  readonly log: Log
}

type Counted = {
  count: number
  lastText: string
  lastMs: number
  reported: number
  reportedMs: number
}

/**
 * Ends of commands and runs are checked at once; the poll finds kills of other processes. Reading a counter takes 0.05 ms, and the
 * first read of the kernel's log 60 ms (2026-11, 2 busy cores).
 */
const POLL_MS = 5_000
const REPORT_MS = 60_000
/** A kill ends a workload within this time. */
const END_MS = 5_000
/** How many kills of other runs are kept until they are asked for. */
const KEPT_VICTIMS = 1_000

/** Watches the runs in `records` until `close`. */
export function makeMemoryKills({ cgroups, kernelLog, countKills, records, logs, clock, log }: Deps): MemoryKills {
  const runs = new Map<RunId, Counted>()
  const closing = new AbortController()
  let lastUnknownMs = -Infinity
  let victims: MemoryKill[] = []

  const countedOf = (run: RunId): Counted => {
    const known = runs.get(run) ?? { count: 0, lastText: '', lastMs: -Infinity, reported: 0, reportedMs: -Infinity }
    runs.set(run, known)
    return known
  }
  /** Reads the kernel's log. Returns the kills of this run that were not returned before, or null without the log. */
  const takeVictims = (run: RunId): readonly MemoryKill[] | null => {
    const kills = kernelLog.readMemoryKills()
    if (kills === null) return null
    if (kills.some(({ cgroup }) => cgroup === null)) lastUnknownMs = clock.monotonicMs()
    const container = records.containerIdOf(run)
    const isOf = ({ cgroup }: MemoryKill): boolean => cgroup?.includes(`/${container}/`) === true
    const all = [...victims, ...kills]
    victims = all.filter((kill) => !isOf(kill)).slice(-KEPT_VICTIMS)
    return all.filter(isOf)
  }
  const tell = (record: OciRunRecord, count: number, which: readonly MemoryKill[]): void => {
    const counted = countedOf(record.run_id)
    const text = describeMemoryKills(which, {
      run: record.run_id,
      count: count - counted.count,
      memoryMib: record.spec.resources.memory_mib,
    })
    Object.assign(counted, { count, lastText: text, lastMs: clock.monotonicMs() })
    writeSystemLine(logs.writerOf(record.sandbox_id), record.log_level, LIFECYCLE_LINES.memoryKills(text))
    log.info(logFieldsOf(record), text)
  }
  const check = (run: RunId): number => {
    const counter = cgroups.memoryKills(records.containerIdOf(run))
    const counted = countedOf(run)
    if (counter === null || counter <= counted.count) return counted.count
    const record = records.read(run)
    if (record === null) return counter
    const which = takeVictims(run) ?? []
    tell(record, counter, which)
    return counter
  }
  const poll = async (): Promise<void> => {
    let counts: readonly (number | null)[] = []
    while (!closing.signal.aborted) {
      await interruptibleSleep(clock, POLL_MS, closing.signal)
      const count = countKills()
      // The kernel counts a kill for the machine first and for its cgroup then, so the runs are checked once more after a kill.
      const isUnchanged = count !== null && counts.length === 2 && counts.every((earlier) => earlier === count)
      counts = [...counts, count].slice(-2)
      if (isUnchanged) continue
      for (const { run_id, started, outcome } of records.list()) if (started !== null && outcome === null) check(run_id)
    }
  }
  const polling = poll()
  return {
    check,
    watch(run) {
      const before = check(run)
      return () => (check(run) > before ? countedOf(run).lastText : null)
    },
    async endedByKill(record) {
      const { run_id } = record
      const container = containerIdOf(record)
      check(run_id)
      const counted = countedOf(run_id)
      const isRecent = (ms: number): boolean => clock.monotonicMs() - ms < END_MS
      if (cgroups.memoryKills(container) !== null) return isRecent(counted.lastMs)
      // The runtime has removed the cgroup with the counter (cgroup v1). The kernel's log remembers the kills.
      const which = takeVictims(run_id)
      if (which === null) return await cgroups.hasReachedMemoryLimit(container)
      if (which.length > 0) tell(record, counted.count + which.length, which)
      return isRecent(counted.lastMs) || (isRecent(lastUnknownMs) && (await cgroups.hasReachedMemoryLimit(container)))
    },
    adopt(record) {
      takeVictims(record.run_id)
      countedOf(record.run_id).count = cgroups.memoryKills(containerIdOf(record)) ?? 0
    },
    reportedOf(run) {
      const counted = runs.get(run)
      if (counted === undefined) return 0
      const nowMs = clock.monotonicMs()
      if (counted.count > counted.reported && nowMs - counted.reportedMs >= REPORT_MS)
        Object.assign(counted, { reported: counted.count, reportedMs: nowMs })
      return counted.reported
    },
    forget(run) {
      runs.delete(run)
    },
    async close() {
      closing.abort()
      await polling
      kernelLog.close()
    },
  }
}

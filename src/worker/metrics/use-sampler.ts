import type { LatestUse } from '../../contract/streams/metrics-protocol.ts'
import type { OrgId, RunId, SandboxId } from '../../domain/ids.ts'
import type { UsePoint } from '../../domain/sandboxes/use-points.ts'
import { interruptibleSleep, NOTIFIED, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { Meter, RestReading } from './meter.ts'
import type { UseHistory } from './use-history.ts'

/** A run that is sampled. */
export type SampledRun = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly org_id: OrgId
  /** The sandbox's name and its organization's slug. Absent in records of an earlier version. */
  readonly name?: string
  readonly org?: string
  /** The time between two samples. */
  readonly intervalMs: number
  /** Whether it was started by an earlier process of the worker. What it used before is unknown. */
  readonly isAdopted: boolean
}

/** Samples what each running sandbox uses. */
export type UseSampler = {
  /** Samples a run until `end`, the first time at the next tick. */
  begin(run: SampledRun, openMeter: () => Meter): void
  /** Takes the last sample of a run, and closes its meter. Does nothing to a run that isn't sampled. */
  end(run: RunId): void
  /** What every sampled run used at last. A run without a sample is not among them. */
  latest(): readonly LatestUse[]
  /** What every sampled run used since its start. */
  totals(): readonly TotalUse[]
  /** Calls `listener` with each sample of a sandbox, and with null when its run ends. The result ends the calls. */
  subscribe(sandbox: SandboxId, listener: (point: UsePoint | null) => void): () => void
  /** Writes all samples of a sandbox to its history. */
  flush(sandbox: SandboxId): void
  close(): Promise<void>
}

export type TotalUse = {
  readonly run: SampledRun
  readonly latest: UsePoint
  readonly cpuNs: number
  readonly receivedBytes: number | null
  readonly sentBytes: number | null
}

type UseSamplerInput = {
  readonly openHistory: (sandbox: SandboxId) => UseHistory
  readonly clock: Clock
  readonly log: Log
}

/** All samples of all runs are taken in ticks. A shorter interval therefore gets a sample at each tick. */
const TICK_MS = 100
/** How many ticks the loop sleeps without runs. */
const IDLE_TICKS = 600
/**
 * How long the samples of one tick may take. Samples that are due beyond that wait for the next tick, so tenants that ask for
 * short intervals take at most a tenth of the worker's thread.
 */
const TICK_BUDGET_MS = 10
/**
 * How long the rest of a reading is used: it takes 80 us of processor time, and the processor time 5 us (2026-11). Of a sandbox
 * that used no processor time since then, little else can have changed.
 */
const REST_MS = 10_000
const REST_OF_IDLE_MS = 60_000

type Sampled = {
  readonly run: SampledRun
  readonly openMeter: () => Meter
  readonly intervalTicks: number
  opened: { readonly meter: Meter; readonly history: UseHistory } | null
  previous: Measured
  memoryBytes: number
  rest: { readonly reading: RestReading; readonly atMs: number; readonly cpuNs: number } | null
  latest: UsePoint | null
}

/** Counters at an instant of the clock that never jumps. Null: unknown, before the first sample. */
type Measured = {
  readonly atMs: number
  readonly cpuNs: number | null
  readonly receivedBytes: number | null
  readonly sentBytes: number | null
}

/**
 * Makes a sampler. One loop serves all runs: a run waits in the list of the tick at which it is due. The loop sleeps until the
 * next of these ticks.
 */
export function makeUseSampler({ openHistory, clock, log }: UseSamplerInput): UseSampler {
  const sampled = new Map<RunId, Sampled>()
  const ofSandbox = new Map<SandboxId, Sampled>()
  const listeners = new Map<SandboxId, Set<(point: UsePoint | null) => void>>()
  const dueAt = new Map<number, Sampled[]>()
  let due: Sampled[] = []
  let lastTick = currentTick()
  let sleepsUntil = 0
  let awake = new AbortController()
  const closing = new AbortController()

  function currentTick(): number {
    return Math.floor(clock.monotonicMs() / TICK_MS)
  }
  function schedule(item: Sampled, tick: number): void {
    const items = dueAt.get(tick)
    if (items === undefined) dueAt.set(tick, [item])
    else items.push(item)
    if (tick < sleepsUntil) awake.abort(NOTIFIED)
  }
  async function keepSampling(): Promise<void> {
    while (!closing.signal.aborted) {
      try {
        takeSamples()
      } catch (error) {
        onFailure(error)
      }
      sleepsUntil = due.length > 0 ? lastTick + 1 : Math.min(lastTick + IDLE_TICKS, ...dueAt.keys())
      awake = new AbortController()
      const restMs = Math.max(1, sleepsUntil * TICK_MS - clock.monotonicMs())
      await interruptibleSleep(clock, restMs, closing.signal, awake.signal)
      sleepsUntil = 0
    }
  }
  function takeSamples(): void {
    const tick = currentTick()
    for (; lastTick < tick; lastTick++) {
      due.push(...(dueAt.get(lastTick + 1) ?? []))
      dueAt.delete(lastTick + 1)
    }
    const fromMs = clock.monotonicMs()
    const wallAheadMs = clock.now().getTime() - fromMs // once for all: the clock reads a file for it
    let taken = 0
    try {
      do {
        const item = due[taken++]
        if (item === undefined || sampled.get(item.run.run_id) !== item) continue // ended, or begun anew
        schedule(item, nextTick(tick, item.intervalTicks))
        takeSample(item, wallAheadMs)
      } while (taken < due.length && clock.monotonicMs() < fromMs + TICK_BUDGET_MS)
    } finally {
      due = due.slice(taken)
    }
  }
  function takeSample(item: Sampled, wallAheadMs: number, isLast = false): void {
    item.opened ??= { meter: item.openMeter(), history: openHistory(item.run.sandbox_id) }
    const { meter, history } = item.opened
    const cpuNs = meter.readCpuNs()
    if (cpuNs === null) return // the run has ended
    const atMs = clock.monotonicMs()
    if (cpuNs !== item.previous.cpuNs || item.rest === null)
      item.memoryBytes = meter.readMemoryBytes() ?? item.memoryBytes
    const restMs = cpuNs === item.rest?.cpuNs ? REST_OF_IDLE_MS : REST_MS
    if (item.rest === null || isLast || atMs - item.rest.atMs >= restMs)
      item.rest = { reading: meter.readRest(), atMs, cpuNs }
    const { reading } = item.rest
    const now = atMs + wallAheadMs
    const point = toPoint(item.previous, { cpuNs, memoryBytes: item.memoryBytes, rest: reading, atMs, now })
    const { receivedBytes, sentBytes } = reading
    item.previous = { atMs, cpuNs, receivedBytes, sentBytes }
    if (point === null) return
    item.latest = point
    history.add(point)
    for (const listener of listeners.get(item.run.sandbox_id) ?? []) listener(point)
  }
  function onFailure(error: unknown): void {
    log.warn({ error }, 'the use of a sandbox could not be sampled')
  }
  const sampling = keepSampling()
  const end = (run: RunId): void => {
    const item = sampled.get(run)
    if (item === undefined) return
    sampled.delete(run)
    const { sandbox_id } = item.run
    if (ofSandbox.get(sandbox_id) === item) ofSandbox.delete(sandbox_id)
    try {
      takeSample(item, clock.now().getTime() - clock.monotonicMs(), true)
    } catch (error) {
      onFailure(error)
    }
    item.opened?.meter.close()
    item.opened?.history.close()
    for (const listener of listeners.get(sandbox_id) ?? []) listener(null)
  }
  return {
    begin(run, openMeter) {
      const intervalTicks = Math.max(1, Math.round(run.intervalMs / TICK_MS))
      const start = run.isAdopted ? null : 0
      const previous = { atMs: clock.monotonicMs(), cpuNs: start, receivedBytes: start, sentBytes: start }
      const item: Sampled = {
        run,
        openMeter,
        intervalTicks,
        opened: null,
        previous,
        memoryBytes: 0,
        rest: null,
        latest: null,
      }
      sampled.set(run.run_id, item)
      ofSandbox.set(run.sandbox_id, item)
      schedule(item, lastTick + 1)
    },
    end,
    latest: () =>
      [...sampled.values()].flatMap(({ run: { run_id, sandbox_id, org_id }, latest }) =>
        latest === null ? [] : [{ run_id, sandbox_id, org_id, point: latest }],
      ),
    totals: () =>
      [...sampled.values()].flatMap(({ run, latest, previous: { cpuNs, receivedBytes, sentBytes } }) =>
        latest === null ? [] : [{ run, latest, cpuNs: cpuNs ?? 0, receivedBytes, sentBytes }],
      ),
    subscribe(sandbox, listener) {
      const ofThis = listeners.get(sandbox) ?? new Set()
      listeners.set(sandbox, ofThis.add(listener))
      if (!ofSandbox.has(sandbox)) listener(null)
      return () => {
        ofThis.delete(listener)
        if (ofThis.size === 0) listeners.delete(sandbox)
      }
    },
    flush(sandbox) {
      ofSandbox.get(sandbox)?.opened?.history.flush()
    },
    async close() {
      closing.abort()
      await sampling
      for (const { opened } of sampled.values()) {
        opened?.meter.close()
        opened?.history.close()
      }
      sampled.clear()
    },
  }
}

type Now = {
  readonly cpuNs: number
  readonly memoryBytes: number
  readonly rest: RestReading
  /** By the clock that never jumps, and by the wall clock. */
  readonly atMs: number
  readonly now: number
}

/**
 * All runs of an interval are sampled in the same tick: a sample among many takes a third of the time of a single one, whose code
 * and data the processor has to fetch again (2026-11).
 */
function nextTick(tick: number, intervalTicks: number): number {
  return (Math.floor(tick / intervalTicks) + 1) * intervalTicks
}

/** The use since the previous measurement. Null if nothing is known of before. */
function toPoint(previous: Measured, { cpuNs, memoryBytes: all, rest, atMs, now }: Now): UsePoint | null {
  if (previous.cpuNs === null) return null
  const coveredMs = atMs - previous.atMs
  if (coveredMs <= 0) return null
  const memoryBytes = Math.max(0, all - rest.droppableBytes)
  return {
    atMs: Math.round(now - coveredMs),
    coveredMs,
    cpuMs: Math.max(0, cpuNs - previous.cpuNs) / 1e6,
    memoryBytes,
    memoryMaxBytes: memoryBytes,
    processes: rest.processes,
    diskBytes: rest.diskBytes,
    receivedBytes: growth(previous.receivedBytes, rest.receivedBytes),
    sentBytes: growth(previous.sentBytes, rest.sentBytes),
  }
}

function growth(before: number | null, after: number | null): number | null {
  return before === null || after === null ? null : Math.max(0, after - before)
}

import { renameSync, statfsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { RunId } from '../../../../domain/ids.ts'
import type { RuntimeOptions } from '../../../../domain/spec/spec.ts'
import type { Clock } from '../../../../lib/clock.ts'
import { readFileSyncOrNull } from '../../../../lib/files.ts'
import type { Log } from '../../../../lib/log.ts'
import { repeat } from '../../../../lib/repeat.ts'
import type { MeasuredUse } from '../cgroups/measure-use.ts'
import { rootfsPaths } from '../rootfs/root-mounts.ts'
import type { OciRunRecord } from './run-records.ts'
import { USE_SAMPLE_FILE, type UseSample } from './use-sample.ts'

/** Samples what each running sandbox uses, at the interval of its specification. */
export type UseSampler = {
  /** Samples a started run until `forget`, the first time at the next tick. */
  begin(record: OciRunRecord): void
  forget(run: RunId): void
  close(): Promise<void>
}

type UseSamplerInput = {
  readonly mountDir: string
  /** Reads the counters of a run's cgroup. Null: the run has none any more. */
  readonly readUse: (run: RunId) => MeasuredUse | null
  readonly clock: Clock
  readonly log: Log
}

/** All samples of all runs are taken in ticks. A shorter interval therefore gets a sample at each tick. */
const TICK_MS = 100
/**
 * How long the samples of one tick may take. Samples that are due beyond that wait for the next tick, so tenants that ask for
 * short intervals take at most a tenth of the worker's thread.
 */
const TICK_BUDGET_MS = 10

type Sampled = {
  readonly run: RunId
  readonly initPid: number | null
  readonly intervalTicks: number
  previous: { readonly cpuNs: number; readonly atMs: number } | null
}

/** Makes a sampler. One loop serves all runs: a run waits in the list of the tick at which it is due. */
export function makeUseSampler({ mountDir, readUse, clock, log }: UseSamplerInput): UseSampler {
  const sampled = new Map<RunId, Sampled>()
  const dueAt = new Map<number, Sampled[]>()
  let due: Sampled[] = []
  let lastTick = currentTick()

  function currentTick(): number {
    return Math.floor(clock.monotonicMs() / TICK_MS)
  }
  function schedule(item: Sampled, tick: number): void {
    const items = dueAt.get(tick)
    if (items === undefined) dueAt.set(tick, [item])
    else items.push(item)
  }
  function takeSamples(): void {
    const tick = currentTick()
    for (; lastTick < tick; lastTick++) {
      due.push(...(dueAt.get(lastTick + 1) ?? []))
      dueAt.delete(lastTick + 1)
    }
    const endMs = clock.monotonicMs() + TICK_BUDGET_MS
    let taken = 0
    try {
      do {
        const item = due[taken++]
        if (item === undefined || sampled.get(item.run) !== item) continue // forgotten, or begun anew
        schedule(item, tick + item.intervalTicks)
        takeSample(item)
      } while (taken < due.length && clock.monotonicMs() < endMs)
    } finally {
      due = due.slice(taken)
    }
  }
  function takeSample(item: Sampled): void {
    const { run, initPid, previous } = item
    const use = readUse(run)
    if (use === null) return // the run has ended
    const paths = rootfsPaths(mountDir, run)
    const atMs = clock.monotonicMs()
    item.previous = { cpuNs: use.cpu_ns, atMs }
    const elapsedNs = previous === null ? 0 : (atMs - previous.atMs) * 1e6
    const sample: UseSample = {
      at: clock.now().toISOString(),
      used_vcpus: previous === null || elapsedNs <= 0 ? null : Math.max(0, use.cpu_ns - previous.cpuNs) / elapsedNs,
      ...use,
      ...readDisk(paths.disk),
      ...readNetwork(initPid),
    }
    const path = join(paths.base, USE_SAMPLE_FILE)
    writeFileSync(`${path}.tmp`, JSON.stringify(sample), { mode: 0o600 })
    renameSync(`${path}.tmp`, path)
  }
  const repetition = repeat(takeSamples, {
    pauseMs: TICK_MS,
    clock,
    onFailure: (error) => {
      log.warn({ err: error }, 'the use of a sandbox could not be sampled')
    },
  })
  return {
    begin({ run_id, spec, started }) {
      const intervalMs = sampleIntervalMs(spec.runtime)
      if (intervalMs === null || started === null) return
      const intervalTicks = Math.max(1, Math.round(intervalMs / TICK_MS))
      const item = { run: run_id, initPid: started.init?.pid ?? null, intervalTicks, previous: null }
      sampled.set(run_id, item)
      schedule(item, lastTick + 1)
    },
    forget(run) {
      sampled.delete(run)
    },
    close: () => repetition.close(),
  }
}

/** Null: the sandbox isn't sampled. The genuine runtime takes an interval of 0 as off, too. */
function sampleIntervalMs({ metrics_sample_interval_ms, disable_metrics_sample }: RuntimeOptions): number | null {
  return disable_metrics_sample || metrics_sample_interval_ms === 0 ? null : metrics_sample_interval_ms
}

function readDisk(folder: string): Pick<UseSample, 'disk_used_bytes' | 'disk_size_bytes'> {
  const { blocks, bfree, bsize } = statfsSync(folder)
  return { disk_used_bytes: (blocks - bfree) * bsize, disk_size_bytes: blocks * bsize }
}

/** Reads the counters of a sandbox's interfaces without the loopback interface, from the network namespace of its process 1. */
function readNetwork(pid: number | null): Pick<UseSample, 'received_bytes' | 'sent_bytes'> {
  const text = pid === null ? null : readFileSyncOrNull(`/proc/${String(pid)}/net/dev`)
  if (text === null) return { received_bytes: null, sent_bytes: null }
  let [received_bytes, sent_bytes] = [0, 0]
  for (const [, name, counters = ''] of text.matchAll(/^ *([^:\n]+): *(.*)$/gm)) {
    if (name === 'lo') continue
    const values = counters.split(/ +/).map(Number)
    received_bytes += values[0] ?? 0
    sent_bytes += values[SENT_BYTES] ?? 0
  }
  return { received_bytes, sent_bytes }
}

/** The column of the sent bytes in `/proc/net/dev`, after eight columns about received packets. */
const SENT_BYTES = 8

import { mkdir, readdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { LatestUse, UseSeries } from '../../contract/streams/metrics-protocol.ts'
import { asId, type OrgId, type RunId, type SandboxId } from '../../domain/ids.ts'
import { levelFor, mergeIntoSteps, type UsePoint, type UseRange } from '../../domain/sandboxes/use-points.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { removePath } from '../../lib/files.ts'
import { repeat } from '../../lib/turns/repeat.ts'
import type { Meter } from './meter.ts'
import { makeEndedHistories } from './ended-histories.ts'
import { makeUseHistory, readUsePoints, type UseHistory } from './use-history.ts'
import { makeUseSampler, type SampledRun, type TotalUse } from './use-sampler.ts'

/**
 * What the sandboxes of this worker use: sampled while they run, and kept on the worker's disk in a file for each sandbox until
 * the sandbox is deleted.
 */
export interface SandboxMetrics {
  begin(run: SampledRun, openMeter: () => Meter): void
  end(run: RunId): void
  /** The points of a range, in the order of time. The step is at least `stepMs`, and what is kept for that time. */
  read(sandbox: SandboxId, range: UseRange, stepMs: number): Promise<UseSeries>
  subscribe(sandbox: SandboxId, listener: (point: UsePoint | null) => void): () => void
  /** What the running sandboxes of an organization, or of all, used at last. */
  latest(org: OrgId | null): readonly LatestUse[]
  totals(): readonly TotalUse[]
  /** Deletes what is kept of a sandbox. Succeeds if nothing is. */
  discard(sandbox: SandboxId): Promise<void>
  close(): Promise<void>
}

type SandboxMetricsInput = {
  /** The folder of the histories. Created when missing, with access for the worker alone. */
  readonly dir: string
  /** How long the history of a sandbox without a run is kept: as long as its log. */
  readonly retentionMs: number
  readonly clock: Clock
  readonly log: Log
}

const SWEEP_MS = 3_600_000

/** Opens the metrics of a worker's sandboxes. */
export async function openSandboxMetrics({
  dir,
  retentionMs,
  clock,
  log,
}: SandboxMetricsInput): Promise<SandboxMetrics> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const pathOf = (sandbox: SandboxId): string => {
    if (!/^[\w-]+$/.test(sandbox)) throw new Error(`${JSON.stringify(sandbox)} can't name a file`)
    return join(dir, sandbox)
  }
  const nowMs = (): number => clock.now().getTime()
  const ended = makeEndedHistories({ clock, log })
  const makeHistory = (sandbox: SandboxId): UseHistory => {
    ended.closeNow(sandbox)
    const history = makeUseHistory(pathOf(sandbox))
    return { ...history, close: () => ended.add(sandbox, history) }
  }
  const sampler = makeUseSampler({ openHistory: makeHistory, clock, log })
  /** Deletes what was kept long enough. The file of a running sandbox is written to, so it is never old. */
  const sweep = async (): Promise<void> => {
    for (const name of await readdir(dir)) {
      const path = pathOf(asId<SandboxId>(name))
      if (nowMs() - (await stat(path)).mtimeMs > retentionMs) await rm(path, { force: true })
    }
  }
  const sweeping = repeat(sweep, {
    pauseMs: SWEEP_MS,
    clock,
    onFailure: (error) => {
      log.warn({ error }, 'old metrics of sandboxes could not be deleted; will retry')
    },
  })
  return {
    begin: (run, openMeter) => {
      sampler.begin(run, openMeter)
    },
    end: (run) => {
      sampler.end(run)
    },
    async read(sandbox, range, askedMs) {
      sampler.flush(sandbox)
      ended.closeNow(sandbox)
      const level = levelFor(range.sinceMs, nowMs())
      const stepMs = Math.max(askedMs, level.stepMs)
      const points = await readUsePoints(pathOf(sandbox), level, range)
      return { stepMs, points: mergeIntoSteps(points, stepMs) }
    },
    subscribe: (sandbox, listener) => sampler.subscribe(sandbox, listener),
    latest: (org) => sampler.latest().filter(({ org_id }) => org === null || org_id === org),
    totals: () => sampler.totals(),
    discard(sandbox) {
      ended.drop(sandbox)
      return removePath(pathOf(sandbox))
    },
    async close() {
      await sweeping.close()
      await sampler.close()
      ended.close()
    },
  }
}

/** The metrics of a worker that keeps none. */
export function makeNoMetrics(): SandboxMetrics {
  return {
    begin: () => undefined,
    end: () => undefined,
    read: (_sandbox, _range, stepMs) => Promise.resolve({ stepMs, points: [] }),
    subscribe: (_sandbox, listener) => {
      listener(null)
      return () => undefined
    },
    latest: () => [],
    totals: () => [],
    discard: () => Promise.resolve(),
    close: () => Promise.resolve(),
  }
}

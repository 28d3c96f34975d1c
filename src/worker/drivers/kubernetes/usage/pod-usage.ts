import type { Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import { repeat } from '../../../../lib/turns/repeat.ts'
import type { ApiClient } from '../../../kubernetes/api-client.ts'
import type { Meter } from '../../../metrics/meter.ts'
import type { Pod } from '../pod.ts'
import { usageSources, type PodUse, type UsageSource } from './usage-sources.ts'

/** What the Pods of this worker use. It asks the cluster while meters are open, and asks for all Pods of a node at once. */
export type PodUsage = {
  /** Opens a meter of a Pod. Its readings are those that the cluster has measured since the reading before. */
  openMeter(pod: string): Meter
  close(): Promise<void>
}

type PodUsageInput = {
  readonly client: Pick<ApiClient, 'request'>
  readonly podOf: (name: string) => Pod | undefined
  readonly clock: Clock
  readonly log: Log
  /** The pause between two looks. Default: `POLL_MS`. */
  readonly pollMs?: number
}

/** A kubelet measures its Pods about every 10 s, and a metrics server every 15 s. */
const POLL_MS = 10_000
/** After how many looks without a source all sources are tried again: the rights may have changed. */
const LOOKS_WITHOUT_SOURCE = 30

/** The newest measurement of a Pod. `cpuNs` is a sum also if the source has rates alone. */
type Measured = PodUse & { readonly cpuNs: number }

/** Makes the usage. Nothing is asked before the first meter is opened. */
export function makePodUsage({ client, podOf, clock, log, pollMs = POLL_MS }: PodUsageInput): PodUsage {
  const sources = usageSources(client)
  const measured = new Map<string, Measured>()
  const open = new Map<string, number>()
  let source: UsageSource | null = null
  let looksToSkip = 0

  const note = (use: PodUse): void => {
    if (!open.has(use.pod)) return
    const before = measured.get(use.pod)
    if (before?.time === use.time) return
    measured.set(use.pod, { ...use, cpuNs: use.cpuNs ?? (before?.cpuNs ?? 0) + grownNs(use, before) })
  }
  const look = async (): Promise<void> => {
    const pods = [...open.keys()]
      .flatMap((name) => podOf(name) ?? [])
      .filter(({ spec }) => spec?.nodeName !== undefined)
    if (pods.length === 0) return
    if (looksToSkip > 0) {
      looksToSkip -= 1
      return
    }
    for (const one of source === null ? sources : [source]) {
      const uses = await one.read(pods)
      if (uses === null) continue
      if (source === null) log.info({ source: one.name }, 'the use of sandboxes is read from the cluster')
      source = one
      for (const use of uses) note(use)
      return
    }
    source = null
    looksToSkip = LOOKS_WITHOUT_SOURCE
    log.warn(
      { tried: sources.map(({ name }) => name) },
      'the use of sandboxes is unknown: the worker may read neither metrics of Pods nor the summaries of nodes, or the cluster has no metrics server',
    )
  }
  const looking = repeat(look, {
    pauseMs: pollMs,
    clock,
    onFailure: (error) => {
      log.warn({ error }, 'the use of sandboxes could not be read; will retry')
    },
  })
  return {
    openMeter(pod) {
      open.set(pod, (open.get(pod) ?? 0) + 1)
      return makeMeter(
        () => measured.get(pod),
        () => {
          const left = (open.get(pod) ?? 1) - 1
          if (left > 0) open.set(pod, left)
          else {
            open.delete(pod)
            measured.delete(pod)
          }
        },
      )
    },
    close: () => looking.close(),
  }
}

/** The processor time since the measurement before, from a rate. The first rate counts for the seconds over which it was measured. */
function grownNs({ rate, time }: PodUse, before: Measured | undefined): number {
  if (rate === null) return 0
  const sinceSecs = before === undefined ? rate.seconds : (Date.parse(time) - Date.parse(before.time)) / 1000
  return rate.cores * Math.max(0, sinceSecs) * 1e9
}

/** A sampler that reads more often than the cluster measures gets no reading, and so averages over the time between measurements. */
function makeMeter(latest: () => Measured | undefined, close: () => void): Meter {
  let current: Measured | undefined
  return {
    readCpuNs() {
      const now = latest()
      if (now === undefined || now.time === current?.time) return null
      current = now
      return now.cpuNs
    },
    readMemoryBytes: () => current?.memoryBytes ?? null,
    readRest: () => ({
      processes: null,
      droppableBytes: 0,
      diskBytes: current?.diskBytes ?? null,
      receivedBytes: current?.receivedBytes ?? null,
      sentBytes: current?.sentBytes ?? null,
    }),
    close,
  }
}

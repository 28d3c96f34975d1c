import type { Registry } from 'prom-client'
import type { SandboxMetrics } from '../../worker/metrics/sandbox-metrics.ts'
import type { TotalUse } from '../../worker/metrics/use-sampler.ts'
import { addGauge, addReadCounter, type MetricText, type Sample } from './gauges.ts'

const LABELS = ['org', 'sandbox', 'sandbox_id'] as const

type Series = { readonly text: MetricText; readonly value: (use: TotalUse) => number | null }

const COUNTERS: readonly Series[] = [
  {
    text: text('sandyard_sandbox_cpu_seconds_total', 'Processor time of a running sandbox.'),
    value: ({ cpuNs }) => cpuNs / 1e9,
  },
  {
    text: text('sandyard_sandbox_received_bytes_total', 'What the network of a running sandbox received.'),
    value: ({ receivedBytes }) => receivedBytes,
  },
  {
    text: text('sandyard_sandbox_sent_bytes_total', 'What the network of a running sandbox sent.'),
    value: ({ sentBytes }) => sentBytes,
  },
]

const GAUGES: readonly Series[] = [
  {
    text: text('sandyard_sandbox_memory_bytes', 'Memory of a running sandbox, without cached files.'),
    value: ({ latest }) => latest.memoryBytes,
  },
  {
    text: text('sandyard_sandbox_disk_used_bytes', 'The space that the files of a running sandbox take on its disk.'),
    value: ({ latest }) => latest.diskBytes,
  },
  {
    text: text('sandyard_sandbox_processes', 'Processes of a running sandbox. Absent for microVMs.'),
    value: ({ latest }) => latest.processes,
  },
]

function text(name: string, help: string): MetricText {
  return { name, help: `${help} Only with SANDYARD_METRICS_SANDBOXES.`, labelNames: LABELS }
}

/** Adds series of each running sandbox of this machine, of at most `max` of them: those that were started first. */
export function addSandboxMetrics(register: Registry, metrics: Pick<SandboxMetrics, 'totals'>, max: number): void {
  const read =
    ({ value }: Series) =>
    (): readonly Sample[] =>
      metrics
        .totals()
        .slice(0, max)
        .flatMap((use) => {
          const seen = value(use)
          const { sandbox_id, org_id, name = sandbox_id, org = org_id } = use.run
          return seen === null ? [] : [{ labels: { org, sandbox: name, sandbox_id }, value: seen }]
        })
  for (const series of COUNTERS) addReadCounter(register, series.text, read(series))
  for (const series of GAUGES) addGauge(register, series.text, read(series))
}

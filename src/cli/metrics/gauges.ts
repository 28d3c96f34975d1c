import { collectDefaultMetrics, Counter, Gauge, type Metric, type Registry } from 'prom-client'

/** The value of a metric for one combination of its labels. */
export type Sample = { readonly labels?: Readonly<Record<string, string>>; readonly value: number }

/** The name and meaning of a metric, and the names of its labels. */
export type MetricText = { readonly name: string; readonly help: string; readonly labelNames?: readonly string[] }

type ReadSamples = () => readonly Sample[] | Promise<readonly Sample[]>

/**
 * Adds a gauge whose samples are read whenever the metrics are scraped. Samples of an earlier scrape disappear. A
 * metric without a value shows no sample, rather than an old one.
 */
export function addGauge(register: Registry, text: MetricText, read: ReadSamples): void {
  const gauge = new Gauge({
    ...configOf(register, text),
    async collect() {
      const samples = await read()
      gauge.reset()
      if (samples.length === 0 && text.labelNames === undefined) gauge.remove() // a gauge without labels begins with a sample of 0
      for (const { labels = {}, value } of samples) gauge.set(labels, value)
    },
  })
}

/** Sums of other metrics, which break Prometheus' rules: only counters end with `_total`. */
const MISNAMED = ['nodejs_active_handles_total', 'nodejs_active_requests_total', 'nodejs_active_resources_total']

/**
 * How often the lag of the event loop is measured, in milliseconds, which each measurement includes. The library's 10 ms were a hundred
 * wake-ups a second, and 1.7 % of a core for an idle server instead of 1.3 (2026-11).
 */
const LAG_EVERY_MS = 100

/** Adds the metrics of the Node process. */
export function addNodeMetrics(register: Registry): void {
  collectDefaultMetrics({ register, eventLoopMonitoringPrecision: LAG_EVERY_MS })
  for (const name of MISNAMED) register.removeSingleMetric(name)
}

/** Adds the version of the program. */
export function addBuildInfo(register: Registry, version: string): void {
  const text = { name: 'sandyard_build_info', help: '1, with the version of the program.', labelNames: ['version'] }
  addGauge(register, text, () => [{ labels: { version }, value: 1 }])
}

/** Adds a counter whose samples are read whenever the metrics are scraped. Whoever counts must never count down. */
export function addReadCounter(register: Registry, text: MetricText, read: ReadSamples): void {
  const counter = new Counter({
    ...configOf(register, text),
    async collect() {
      const samples = await read()
      counter.reset()
      for (const { labels = {}, value } of samples) counter.inc(labels, value)
    },
  })
}

function configOf(register: Registry, { name, help, labelNames = [] }: MetricText) {
  return { name, help, labelNames: [...labelNames], registers: [register] }
}

/** The names of a metric's labels, as it was created. */
export function labelNamesOf(metric: Metric): readonly string[] {
  return 'labelNames' in metric && Array.isArray(metric.labelNames) ? metric.labelNames.map(String) : []
}

import { useState } from 'preact/hooks'
import { at, get } from '../../lib/api.ts'
import { bytes, percent } from '../../lib/format.ts'
import { useLoad } from '../../lib/load.ts'
import type { MetricPoint, Metrics } from '../../lib/types.ts'
import { Load } from '../../ui/load.tsx'
import { Plot } from '../../ui/plot.tsx'

const RANGES = [
  { label: '5 minutes', secs: 300 },
  { label: '1 hour', secs: 3_600 },
  { label: '1 day', secs: 86_400 },
  { label: '31 days', secs: 31 * 86_400 },
] as const
const REFRESH_MS = 5_000

/** What a sandbox used, as plots that go on while it runs. */
export default function Plots({ id = '' }: { readonly id?: string }) {
  const [secs, setSecs] = useState<number>(300)
  const loaded = useLoad(
    (signal) =>
      get<Metrics>(at`/v1/sandboxes/${id}/metrics`, {
        query: { since: new Date(Date.now() - secs * 1000).toISOString() },
        signal,
      }),
    [id, secs],
    { everyMs: REFRESH_MS },
  )
  return (
    <>
      <div class="filters">
        <select
          aria-label="Range"
          value={String(secs)}
          onChange={(event) => setSecs(Number(event.currentTarget.value))}
        >
          {RANGES.map((range) => (
            <option key={range.secs} value={String(range.secs)}>
              {range.label}
            </option>
          ))}
        </select>
      </div>
      <Load of={loaded}>
        {({ data, step_secs }) =>
          data.length === 0 ? (
            <p class="faint">Nothing was measured in this time. A sandbox is measured while it runs.</p>
          ) : (
            <PlotsOf points={data} stepSecs={step_secs} secs={secs} />
          )
        }
      </Load>
    </>
  )
}

type PointsProps = { readonly points: readonly MetricPoint[]; readonly stepSecs: number; readonly secs: number }

function PlotsOf({ points, stepSecs, secs }: PointsProps) {
  const end = Date.now() / 1000
  const range = [end - secs, end] as const
  const times = points.map(({ at: start }) => Date.parse(start) / 1000)
  const of = (read: (point: MetricPoint) => number | null) => points.map(read)
  const rate = (count: number | null): number | null => (count === null ? null : count / stepSecs)
  return (
    <div class="plots">
      <Plot
        title="Processor"
        times={times}
        range={range}
        unit={percent}
        series={[{ label: 'used', values: of(({ used_vcpus }) => used_vcpus) }]}
      />
      <Plot
        title="Memory"
        times={times}
        range={range}
        unit={bytes}
        series={[{ label: 'used', values: of(({ memory_bytes }) => memory_bytes) }]}
      />
      <Plot
        title="Disk"
        times={times}
        range={range}
        unit={bytes}
        series={[{ label: 'used', values: of(({ disk_used_bytes }) => disk_used_bytes) }]}
      />
      <Plot
        title="Network"
        times={times}
        range={range}
        unit={(value) => `${bytes(value)}/s`}
        series={[
          { label: 'received', values: of(({ received_bytes }) => rate(received_bytes)) },
          { label: 'sent', values: of(({ sent_bytes }) => rate(sent_bytes)) },
        ]}
      />
    </div>
  )
}

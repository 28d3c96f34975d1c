import { useState } from 'preact/hooks'
import { get } from '../lib/api.ts'
import { date, money, number } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import { csv, saveFile } from '../lib/save-file.ts'
import type { StorageBreakdown, UsageBreakdown, UsageSummary } from '../lib/types.ts'
import { Load } from '../ui/load.tsx'
import { Page, Section } from '../ui/page.tsx'
import { Plot } from '../ui/plot.tsx'
import { Table } from '../ui/table.tsx'

const HOUR_SECS = 3600
const MIB_PER_GIB = 1024
type Range = { readonly since?: string; readonly until?: string }

/** What the organization used, and what it costs by the prices of its plan. */
export default function Usage() {
  const months = monthsUntil(new Date())
  const [month, setMonth] = useState(0)
  const range: Range = month === 0 ? {} : { since: months[month]?.start ?? '', until: months[month - 1]?.start ?? '' }
  const summary = useLoad((signal) => get<UsageSummary>('/v1/billing/usage', { query: range, signal }), [month])
  return (
    <Page
      title="Usage"
      lead="Metered by the millisecond while sandboxes run. All amounts are estimates."
      actions={
        <select
          aria-label="Month"
          value={String(month)}
          onChange={(event) => setMonth(Number(event.currentTarget.value))}
        >
          {months.map(({ label }, index) => (
            <option key={label} value={String(index)}>
              {label}
            </option>
          ))}
        </select>
      }
    >
      <Load of={summary}>{(data) => <Summary data={data} />}</Load>
      <BySandbox range={range} month={month} />
      <ByVolume range={range} month={month} />
    </Page>
  )
}

function Summary({ data }: { readonly data: UsageSummary }) {
  const metrics = [...new Set(data.daily.map(({ metric }) => metric))]
  return (
    <>
      <Section title={`${date(data.period_start)} to ${date(data.period_end)}`}>
        <div class="row">
          <strong>{money(data.total_cents)} so far</strong>
          <span class="faint">
            {money(data.projected_spend_cents)} at the end of the period, if it goes on like this. The currency is that
            of the plan.
          </span>
        </div>
        <Table
          label="Line items"
          rows={data.line_items}
          keyOf={({ name }) => name}
          columns={[
            { title: 'Item', cell: ({ name }) => name },
            { title: 'Quantity', isNumber: true, cell: ({ quantity, unit }) => `${number(quantity, 3)} ${unit}` },
            { title: 'Price beyond what is included', isNumber: true, cell: ({ amount_cents }) => money(amount_cents) },
          ]}
        />
      </Section>
      <div class="grid">
        {metrics.map((metric) => {
          const points = data.daily.filter((point) => point.metric === metric)
          const unit = data.line_items.find(({ name }) => name === metric)?.unit ?? ''
          return (
            <div key={metric} class="panel">
              <Plot
                title={`${metric} by day`}
                isBars
                times={points.map((point) => Date.parse(point.date) / 1000)}
                series={[{ label: unit, values: points.map(({ quantity }) => quantity) }]}
                unit={(value) => number(value, 3)}
              />
            </div>
          )
        })}
      </div>
    </>
  )
}

type RangeProps = { readonly range: Range; readonly month: number }

function BySandbox({ range, month }: RangeProps) {
  const loaded = useLoad(
    (signal) => get<UsageBreakdown>('/v1/billing/usage/sandbox', { query: range, signal }),
    [month],
  )
  return (
    <Load of={loaded}>
      {({ rows, sandboxes }) => {
        const names = new Map(sandboxes.map(({ id, name }) => [id, name]))
        const sums = sumBy(
          rows,
          ({ sandbox_id }) => sandbox_id,
          ({ vcpu_seconds, mem_mib_seconds, disk_mib_seconds }) => [
            vcpu_seconds / HOUR_SECS,
            mem_mib_seconds / MIB_PER_GIB / HOUR_SECS,
            disk_mib_seconds / MIB_PER_GIB / HOUR_SECS,
          ],
        )
        const save = (): void => {
          const lines = rows.map((row) => [
            row.day,
            row.sandbox_id,
            names.get(row.sandbox_id) ?? '',
            row.vcpu_seconds,
            row.mem_mib_seconds,
            row.disk_mib_seconds,
          ])
          saveFile(
            'usage-by-sandbox.csv',
            csv([['day', 'sandbox_id', 'name', 'vcpu_seconds', 'memory_mib_seconds', 'disk_mib_seconds'], ...lines]),
          )
        }
        return (
          <Section title="By sandbox" actions={<CsvButton onSave={save} />}>
            <Sums
              title="By sandbox"
              sums={sums}
              names={names}
              titles={['vCPU hours', 'Memory, GiB hours', 'Disk, GiB hours']}
              path="/sandboxes/"
            />
          </Section>
        )
      }}
    </Load>
  )
}

function ByVolume({ range, month }: RangeProps) {
  const loaded = useLoad(
    (signal) => get<StorageBreakdown>('/v1/billing/usage/storage', { query: range, signal }),
    [month],
  )
  return (
    <Load of={loaded}>
      {({ rows, volumes }) => {
        const names = new Map(volumes.map(({ id, name }) => [id, name ?? 'default']))
        const sums = sumBy(
          rows,
          ({ volume_id }) => volume_id,
          ({ mib_seconds }) => [mib_seconds / MIB_PER_GIB / HOUR_SECS],
        )
        const save = (): void => {
          const lines = rows.map((row) => [row.day, row.volume_id, names.get(row.volume_id) ?? '', row.mib_seconds])
          saveFile('usage-by-volume.csv', csv([['day', 'volume_id', 'name', 'mib_seconds'], ...lines]))
        }
        return (
          <Section title="By volume and snapshot" actions={<CsvButton onSave={save} />}>
            <Sums title="By volume" sums={sums} names={names} titles={['GiB hours']} path={null} />
          </Section>
        )
      }}
    </Load>
  )
}

function CsvButton({ onSave }: { readonly onSave: () => void }) {
  return (
    <button type="button" class="button small" onClick={onSave}>
      Save as CSV
    </button>
  )
}

type SumsProps = {
  readonly title: string
  readonly sums: ReadonlyMap<string, readonly number[]>
  readonly names: ReadonlyMap<string, string>
  readonly titles: readonly string[]
  /** Where a name leads to, before the id. Null: nowhere. */
  readonly path: string | null
}

function Sums({ title, sums, names, titles, path }: SumsProps) {
  if (sums.size === 0) return <p class="faint">Nothing in this time.</p>
  const rows = [...sums].toSorted(([, [a = 0]], [, [b = 0]]) => b - a)
  const nameOf = (id: string): string => names.get(id) ?? `${id} (deleted)`
  return (
    <Table
      label={title}
      rows={rows}
      keyOf={([id]) => id}
      columns={[
        { title: 'Name', cell: ([id]) => (path === null ? nameOf(id) : <a href={`${path}${id}`}>{nameOf(id)}</a>) },
        ...titles.map((title, index) => ({
          title,
          isNumber: true,
          cell: ([, values]: readonly [string, readonly number[]]) => number(values[index] ?? 0, 4),
        })),
      ]}
    />
  )
}

function sumBy<Row>(
  rows: readonly Row[],
  keyOf: (row: Row) => string,
  valuesOf: (row: Row) => readonly number[],
): ReadonlyMap<string, readonly number[]> {
  const sums = new Map<string, readonly number[]>()
  for (const row of rows) {
    const old = sums.get(keyOf(row)) ?? []
    sums.set(
      keyOf(row),
      valuesOf(row).map((value, index) => value + (old[index] ?? 0)),
    )
  }
  return sums
}

/** This UTC month and those before it, the newest first. */
function monthsUntil(now: Date): readonly { readonly label: string; readonly start: string }[] {
  return Array.from({ length: 12 }, (_, back) => {
    const start = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back, 1))
    return {
      label: start.toLocaleDateString('en-GB', { month: 'long', year: 'numeric', timeZone: 'UTC' }),
      start: start.toISOString(),
    }
  })
}

import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { formatNumber } from './numbers.ts'
import { alignTable, cellsOf, type ResultRow } from './report.ts'

const ROOT = join(import.meta.dirname, '../..')
const RESULTS = join(ROOT, 'bench/results.json')
const PAGE = join(ROOT, 'docs/performance.md')
/** The spread is that of this many latest runs of a row. */
const RUNS = 5

/** Whether other work kept the cores busy before a run. */
function wasBusy({ load }: Pick<RunInfo, 'load'>, cores: number): boolean {
  return load !== null && load > cores
}

/** Where and when rows were measured. `load` is the machine’s load average before, or null if it was not recorded. */
export type RunInfo = { readonly at: string; readonly machine: string; readonly load: number | null }

/** The latest result of a row, and its figures in its latest runs, the newest last. */
export type StoredRow = Omit<ResultRow, 'samples' | 'value'> & RunInfo & { readonly figures: readonly number[] }

type StoredResults = { readonly rows: readonly StoredRow[] }

/** Reads the results that are kept with the documents. */
export async function readStoredResults(): Promise<readonly StoredRow[]> {
  const { rows } = JSON.parse(await readFile(RESULTS, 'utf8')) as StoredResults // written by `storeResults`
  return rows
}

/**
 * Adds the rows of a run. A row replaces the earlier one of the same benchmark and text and keeps its figures. Rows that
 * were not measured stay, with their date. With a benchmark’s new rows, its rows that it no longer has go. Rows that were
 * measured beside other work never replace those of a machine with nothing else to do.
 */
export function mergeResults(
  stored: readonly StoredRow[],
  rows: readonly ResultRow[],
  { cores, ...info }: RunInfo & { readonly cores: number },
): readonly StoredRow[] {
  const quiet = new Set(stored.filter((row) => !wasBusy(row, cores)).map(({ benchmark }) => benchmark))
  if (wasBusy(info, cores))
    return rows.some(({ benchmark }) => quiet.has(benchmark)) ? stored : merge(stored, rows, info)
  return merge(stored, rows, info)
}

function merge(stored: readonly StoredRow[], rows: readonly ResultRow[], info: RunInfo): readonly StoredRow[] {
  const measured = new Set(rows.map(({ benchmark }) => benchmark))
  const fresh = rows.map((row): StoredRow => {
    const { samples: _samples, value: _value, ...rest } = row
    const earlier = stored.find((one) => one.benchmark === row.benchmark && one.what === row.what)
    const figure = figureOf(row)
    const kept = earlier?.machine === info.machine ? earlier.figures : []
    return { ...rest, ...info, figures: figure === null ? [] : [...kept, figure].slice(-RUNS) }
  })
  const order = [...new Set([...stored.map(({ benchmark }) => benchmark), ...measured])]
  return order.flatMap((name) => (measured.has(name) ? fresh : stored).filter(({ benchmark }) => benchmark === name))
}

/** Formats the spread of the figures: the smallest, the largest and their number. Empty for fewer than two. */
export function formatSpread(figures: readonly number[]): string {
  if (figures.length < 2) return ''
  const [least, most] = [Math.min(...figures), Math.max(...figures)].map(formatNumber)
  return `${least ?? ''} to ${most ?? ''} (${String(figures.length)} runs)`
}

/** The figure of a row whose spread is shown. */
export function figureOf({ value, ratio }: Pick<ResultRow, 'value' | 'ratio'>): number | null {
  return value ?? ratio
}

const HEAD = ['benchmark', 'what', 'goal', 'raw limit', 'measured', 'ratio', 'verdict', 'spread', 'date, load']
const BEGIN = '<!-- results:begin -->'
const END = '<!-- results:end -->'

/** Writes the results into bench/results.json and as the table of docs/performance.md. */
export async function writeStoredResults(rows: readonly StoredRow[]): Promise<void> {
  await writeFile(RESULTS, `${JSON.stringify({ rows } satisfies StoredResults, null, 2)}\n`)
  const page = await readFile(PAGE, 'utf8')
  const [before, after] = [page.indexOf(BEGIN), page.indexOf(END)]
  if (before < 0 || after < before) throw new Error('docs/performance.md has no place for the results')
  await writeFile(PAGE, `${page.slice(0, before + BEGIN.length)}\n\n${renderStored(rows)}\n\n${page.slice(after)}`)
}

/** Formats the table of docs/performance.md. */
export function renderStored(rows: readonly StoredRow[]): string {
  return alignTable(
    HEAD,
    rows.map((row) => [
      ...cellsOf(row),
      formatSpread(row.figures),
      row.load === null ? row.at : `${row.at}, ${row.load.toFixed(1)}`,
    ]),
  )
}

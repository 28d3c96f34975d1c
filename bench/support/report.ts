/** One result of a benchmark. */
export type ResultRow = {
  readonly benchmark: string
  readonly what: string
  readonly measured: string
  /** The raw limit, measured in the same run and formatted. Empty when there is none. */
  readonly limit: string
  /** The measured value divided by the limit. Null when the goal is not a ratio. */
  readonly ratio: number | null
  /** The measured figure whose spread over several runs is shown. Absent: the ratio. */
  readonly value?: number
  /** The goal, formatted. Empty when there is none. */
  readonly goal: string
  readonly isMet: boolean | null
  /** The samples, which are written to the JSON file only. */
  readonly samples?: unknown
}

const HEAD = ['benchmark', 'what', 'goal', 'raw limit', 'measured', 'ratio', 'verdict', 'spread'] as const

/** Formats the rows as a Markdown table. `spreadOf` formats the spread of a row over its latest runs. */
export function renderTable<Row extends ResultRow>(rows: readonly Row[], spreadOf: (row: Row) => string): string {
  return alignTable(HEAD, rows.map((row) => [...cellsOf(row), spreadOf(row)])) // prettier-ignore
}

/** The cells of a row, up to its verdict. */
export function cellsOf(row: ResultRow): readonly string[] {
  const ratio = row.ratio === null ? '' : row.ratio.toFixed(2)
  return [row.benchmark, row.what, row.goal, row.limit, row.measured, ratio, formatVerdict(row)]
}

/** Formats a Markdown table whose columns are aligned. */
export function alignTable(head: readonly string[], cells: readonly (readonly string[])[]): string {
  const widths = head.map((title, column) =>
    Math.max(title.length, ...cells.map((line) => (line[column] ?? '').length)),
  )
  const line = (texts: readonly string[]): string =>
    `| ${texts.map((text, column) => text.padEnd(widths[column] ?? 0)).join(' | ')} |`
  return [line(head), line(widths.map((width) => '-'.repeat(width))), ...cells.map(line)].join('\n')
}

/** Formats whether the goal is met: `pass`, `fail`, or an empty string without a goal. */
export function formatVerdict({ isMet }: Pick<ResultRow, 'isMet'>): string {
  return isMet === null ? '' : isMet ? 'pass' : 'fail'
}

/** What a benchmark found out about one thing. */
export type ResultRow = {
  readonly benchmark: string
  readonly what: string
  readonly measured: string
  /** The raw limit of the same run, in words; empty when there is none. */
  readonly limit: string
  /** Measured over limit, or null where the goal is no ratio. */
  readonly ratio: number | null
  /** Empty for what is only told. */
  readonly goal: string
  readonly isMet: boolean | null
  /** The samples behind it, for the JSON file. */
  readonly samples?: unknown
}

/** The rows as a Markdown table. */
export function renderTable(rows: readonly ResultRow[]): string {
  const cells = rows.map((row) => [
    row.benchmark,
    row.what,
    row.measured,
    row.limit,
    row.ratio === null ? '' : row.ratio.toFixed(2),
    row.goal,
    formatVerdict(row),
  ])
  const head = ['benchmark', 'what', 'measured', 'raw limit', 'ratio', 'goal', 'verdict']
  const widths = head.map((title, column) =>
    Math.max(title.length, ...cells.map((line) => (line[column] ?? '').length)),
  )
  const line = (texts: readonly string[]): string =>
    `| ${texts.map((text, column) => text.padEnd(widths[column] ?? 0)).join(' | ')} |`
  return [line(head), line(widths.map((width) => '-'.repeat(width))), ...cells.map(line)].join('\n')
}

/** `met`, `not met`, or nothing for what is only told. */
export function formatVerdict({ isMet }: ResultRow): string {
  return isMet === null ? '' : isMet ? 'met' : 'not met'
}

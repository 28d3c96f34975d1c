/** One result of a benchmark. */
export type ResultRow = {
  readonly benchmark: string
  readonly what: string
  readonly measured: string
  /** The raw limit, measured in the same run and formatted. Empty when there is none. */
  readonly limit: string
  /** The measured value divided by the limit. Null when the goal is not a ratio. */
  readonly ratio: number | null
  /** The goal, formatted. Empty when there is none. */
  readonly goal: string
  readonly isMet: boolean | null
  /** The samples, which are written to the JSON file only. */
  readonly samples?: unknown
}

/** Formats the rows as a Markdown table. */
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

/** Formats whether the goal is met: `met`, `not met`, or an empty string without a goal. */
export function formatVerdict({ isMet }: ResultRow): string {
  return isMet === null ? '' : isMet ? 'met' : 'not met'
}

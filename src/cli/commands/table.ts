import { displayWidth, escapeControls, truncate } from '../../lib/terminal-text.ts'
import { isUuid } from '../../lib/uuid.ts'

/** The cells of a row. Null is printed as `-`. */
export type Row = readonly (string | null)[]

/** Formats rows of one table as lines, each with its line end. */
export type TableFormat = (rows: readonly Row[]) => string

/** The space between two columns. */
const GAP = '  '
/**
 * The width to which all columns are shortened before any is shortened further, and the least width. A terminal of 80 columns
 * has room for 9 columns then.
 */
const MIN_WIDTHS = [12, 4] as const

/**
 * Makes the format of a table. At a terminal, columns are aligned to the given first rows, and the widest column is
 * shortened until a line fits `width`. Ids are never shortened. Without a width, columns are separated by tabs, and
 * nothing is shortened, so that programs can read the table. Control characters in cells are escaped.
 */
export function makeTableFormat(firstRows: readonly Row[], width: number | null): TableFormat {
  if (width === null) return (rows) => rows.map((row) => `${row.map(cellText).join('\t')}\n`).join('')
  const widths = fitWidths(firstRows, width)
  return (rows) => rows.map((row) => `${formatLine(row, widths)}\n`).join('')
}

function cellText(cell: string | null): string {
  return escapeControls(cell ?? '-')
}

function fitWidths(rows: readonly Row[], width: number): readonly number[] {
  const count = Math.max(0, ...rows.map((row) => row.length))
  const columns = Array.from({ length: count }, (_, index) => {
    const cells = rows.map((row) => cellText(row[index] ?? null))
    const isFixed = cells.length > 1 && cells.slice(1).every((cell) => isUuid(cell) || cell === '-')
    return { width: Math.max(...cells.map(displayWidth)), isFixed }
  })
  const gaps = GAP.length * Math.max(0, count - 1)
  let excess = columns.reduce((sum, column) => sum + column.width, gaps) - width
  for (const minWidth of MIN_WIDTHS)
    while (excess > 0) {
      const shrinkable = columns.filter((column) => !column.isFixed && column.width > minWidth)
      const [widest, next] = shrinkable.toSorted((a, b) => b.width - a.width)
      if (widest === undefined) break
      const least = Math.max(minWidth, Math.min(widest.width - 1, next?.width ?? minWidth))
      const taken = Math.min(excess, widest.width - least)
      widest.width -= taken
      excess -= taken
    }
  return columns.map((column) => column.width)
}

function formatLine(row: Row, widths: readonly number[]): string {
  const cells = row.map((cell, index) => {
    const text = truncate(cellText(cell), widths[index] ?? Infinity)
    return text + ' '.repeat(Math.max(0, (widths[index] ?? 0) - displayWidth(text)))
  })
  return cells.join(GAP).trimEnd()
}

/** The width of the terminal in columns. Null: standard output is no terminal. */
export function terminalWidth(): number | null {
  if (!process.stdout.isTTY) return null
  const given = Number(process.env['COLUMNS'])
  return Number.isSafeInteger(given) && given > 0 ? given : process.stdout.columns
}

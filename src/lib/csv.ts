/**
 * Formats a line of CSV (RFC 4180). Cells with a comma, a quote or a line break are quoted, and the line ends with
 * CRLF. A cell that a spreadsheet would run as a formula gets a leading apostrophe, because names come from tenants.
 * Decimal numbers stay unchanged.
 */
export function csvLine(cells: readonly string[]): string {
  return `${cells.map(csvCell).join(',')}\r\n`
}

function csvCell(text: string): string {
  const safe = FORMULA_START.test(text) && !NUMBER.test(text) ? `'${text}` : text
  return NEEDS_QUOTES.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
}

/** Characters that start a formula in a spreadsheet, full-width forms included. */
const FORMULA_START = /^[=+\-@\t\r\n＝＋－＠]/
const NUMBER = /^-?\d+(?:\.\d+)?$/
const NEEDS_QUOTES = /[",\r\n]|^\s|\s$/

/**
 * A line of CSV (RFC 4180): cells with a comma, a quote or a line break are quoted, lines end with CRLF. A text cell that
 * a spreadsheet would take for a formula begins with an apostrophe, because names come from tenants; what is a
 * decimal number stays as it is.
 */
export function csvLine(cells: readonly string[]): string {
  return `${cells.map(csvCell).join(',')}\r\n`
}

function csvCell(text: string): string {
  const safe = FORMULA_START.test(text) && !NUMBER.test(text) ? `'${text}` : text
  return NEEDS_QUOTES.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
}

/** What makes a spreadsheet calculate, full-width forms included. */
const FORMULA_START = /^[=+\-@\t\r\n＝＋－＠]/
const NUMBER = /^-?\d+(?:\.\d+)?$/
const NEEDS_QUOTES = /[",\r\n]|^\s|\s$/

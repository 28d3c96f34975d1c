import type { Page, PageInput } from '../../control/requests/page.ts'
import { PAGE_MAX } from '../../domain/requests/request-bounds.ts'

type Row = readonly (string | null)[]

/** Prints a line of headings and a line for each row. Columns are separated by tabs, and null is printed as `-`. */
export function printTable(headings: readonly string[], rows: readonly Row[]): void {
  for (const row of [headings, ...rows]) process.stdout.write(`${row.map((cell) => cell ?? '-').join('\t')}\n`)
}

/** Prints a paged list in the format of `printTable`. It prints page by page, so a long list needs little memory. */
export async function printPages<Item>(
  headings: readonly string[],
  read: (input: PageInput) => Promise<Page<Item>>,
  toRow: (item: Item) => Row,
): Promise<void> {
  printTable(headings, [])
  for (let cursor: string | null = null; ;) {
    const page: Page<Item> = await read({ cursor, limit: PAGE_MAX })
    for (const row of page.items.map(toRow)) process.stdout.write(`${row.map((cell) => cell ?? '-').join('\t')}\n`)
    cursor = page.nextCursor
    if (cursor === null) return
  }
}

/** Prints a value as indented JSON. */
export function printJson(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value, null, 2)}\n`)
}

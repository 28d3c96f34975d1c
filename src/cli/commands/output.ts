import { once } from 'node:events'
import type { Page, PageInput } from '../../control/requests/page.ts'
import { PAGE_MAX } from '../../domain/requests/request-bounds.ts'
import { makeTableFormat, terminalWidth, type Row, type TableFormat } from './table.ts'

/** Prints a line of headings and a line for each row, in the format of `makeTableFormat`. Null is printed as `-`. */
export function printTable(headings: readonly string[], rows: readonly Row[]): void {
  const all = [headings, ...rows]
  process.stdout.write(makeTableFormat(all, terminalWidth())(all))
}

/** Prints a paged list in the format of `printTable`. It prints page by page, so a long list needs little memory. */
export async function printPages<Item>(
  headings: readonly string[],
  read: (input: PageInput) => Promise<Page<Item>>,
  toRow: (item: Item) => Row,
): Promise<void> {
  await printTablePages(headings, readPages(read), toRow)
}

async function* readPages<Item>(read: (input: PageInput) => Promise<Page<Item>>): AsyncGenerator<readonly Item[]> {
  for (let cursor: string | null = null; ;) {
    const page: Page<Item> = await read({ cursor, limit: PAGE_MAX })
    yield page.items
    cursor = page.nextCursor
    if (cursor === null) return
  }
}

/** Prints a list that arrives in pages. At a terminal, the first page decides the widths of the columns. */
export async function printTablePages<Item>(
  headings: readonly string[],
  pages: AsyncIterable<readonly Item[]>,
  toRow: (item: Item) => Row,
): Promise<void> {
  let format: TableFormat | null = null
  for await (const page of pages) {
    const rows = page.map(toRow)
    if (format === null) {
      format = makeTableFormat([headings, ...rows], terminalWidth())
      await write(format([headings]))
    }
    await write(format(rows))
  }
  if (format === null) printTable(headings, [])
}

/** Prints each item of a list that arrives in pages as one line of JSON. */
export async function printJsonLines(pages: AsyncIterable<readonly unknown[]>): Promise<void> {
  for await (const page of pages) await write(page.map((item) => `${JSON.stringify(item)}\n`).join(''))
}

/** Writes to standard output. If the reader is slow, waits until the output's buffer is empty. */
export async function write(text: string): Promise<void> {
  if (!process.stdout.write(text)) await once(process.stdout, 'drain')
}

/** Prints a value as indented JSON. */
export function printJson(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value, null, 2)}\n`)
}

import type { Page, PageInput } from '../../control/requests/page.ts'
import { PAGE_MAX } from '../../domain/requests/request-bounds.ts'

/** Prints every row of a paged list, page by page: a line of headings, then a line a row, with a tab between columns. */
export async function printList<Item>(
  headings: readonly string[],
  read: (input: PageInput) => Promise<Page<Item>>,
  cells: (item: Item) => readonly (string | null)[],
): Promise<void> {
  const print = (line: readonly (string | null)[]): void => {
    process.stdout.write(`${line.map((cell) => cell ?? '-').join('\t')}\n`)
  }
  print(headings)
  for (let cursor: string | null = null; ;) {
    const page: Page<Item> = await read({ cursor, limit: PAGE_MAX })
    for (const item of page.items) print(cells(item))
    cursor = page.nextCursor
    if (cursor === null) return
  }
}

import type { Page, PageInput } from '../../control/requests/page.ts'

/** Pages of a list that is read by the key of the last item before. */
export function keysetPages<Item>(
  read: (after: string | null, limit: number) => Promise<readonly Item[]>,
  keyOf: (item: Item) => string,
): (input: PageInput) => Promise<Page<Item>> {
  return async ({ cursor, limit }) => {
    const items = await read(cursor, limit)
    const last = items.at(-1)
    return { items, nextCursor: last !== undefined && items.length === limit ? keyOf(last) : null }
  }
}

import { decodeCursor, encodeCursor, type CursorList } from '../../domain/requests/cursor.ts'

/**
 * The page that a request asks for. It contains at most `limit` items. `cursor` is the `next_cursor` of the previous
 * page.
 */
export type PageInput = { readonly cursor: string | null; readonly limit: number }

/** A page of a list. `nextCursor` is null on the last page. */
export type Page<Item> = { readonly items: readonly Item[]; readonly nextCursor: string | null }

/**
 * Reads a page of a list that is ordered by id. A cursor is a position in that order. Rows that are inserted or deleted
 * between two pages therefore neither repeat nor hide other rows. `read` returns the first `count` rows after the row
 * with the id `after`. Throws `invalid_request` for a bad cursor.
 */
export async function readPage<Item extends { readonly id: string }>(
  list: CursorList,
  { cursor, limit }: PageInput,
  read: (after: string | null, count: number) => Promise<readonly Item[]>,
): Promise<Page<Item>> {
  const rows = await read(cursor === null ? null : decodeCursor(list, cursor), limit + 1)
  const items = rows.slice(0, limit)
  const last = items.at(-1)
  return { items, nextCursor: rows.length > limit && last !== undefined ? encodeCursor(list, last.id) : null }
}

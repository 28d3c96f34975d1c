import type { ComponentChildren } from 'preact'
import { useState } from 'preact/hooks'

export type Column<Row> = {
  readonly title: string
  readonly cell: (row: Row) => ComponentChildren
  readonly isNumber?: boolean
}

type TableProps<Row> = {
  readonly label: string
  readonly rows: readonly Row[]
  readonly columns: readonly Column<Row>[]
  readonly keyOf: (row: Row) => string
  /** Chosen rows, if rows can be chosen. */
  readonly chosen?: ReadonlySet<string>
  readonly onChoose?: (chosen: ReadonlySet<string>) => void
}

/** How many rows are shown at first, and how many more at each request: a browser lays out a few hundred at once. */
const ROWS_SHOWN = 100

/** A table. On a narrow screen each row becomes a card. */
export function Table<Row>({ label, rows, columns, keyOf, chosen, onChoose }: TableProps<Row>) {
  const [shownMax, setShownMax] = useState(ROWS_SHOWN)
  const shown = rows.slice(0, shownMax)
  const isAll = chosen !== undefined && rows.length > 0 && rows.every((row) => chosen.has(keyOf(row)))
  const toggle = (id: string, isChosen: boolean): void => {
    const next = new Set(chosen)
    if (isChosen) next.add(id)
    else next.delete(id)
    onChoose?.(next)
  }
  return (
    <div class="table-frame" role="region" aria-label={label} tabindex={0}>
      <table>
        <thead>
          <tr>
            {chosen === undefined ? null : (
              <th class="choice">
                <input
                  type="checkbox"
                  aria-label="Choose all"
                  checked={isAll}
                  onChange={(event) => onChoose?.(new Set(event.currentTarget.checked ? rows.map(keyOf) : []))}
                />
              </th>
            )}
            {columns.map(({ title, isNumber }) => (
              <th key={title} scope="col" class={isNumber === true ? 'number' : ''}>
                {title === '' ? <span class="hidden">Actions</span> : title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.map((row) => {
            const id = keyOf(row)
            return (
              <tr key={id} aria-selected={chosen?.has(id)}>
                {chosen === undefined ? null : (
                  <td class="choice">
                    <input
                      type="checkbox"
                      aria-label="Choose"
                      checked={chosen.has(id)}
                      onChange={(event) => toggle(id, event.currentTarget.checked)}
                    />
                  </td>
                )}
                {columns.map(({ title, cell, isNumber }) => (
                  <td key={title} data-title={title} class={isNumber === true ? 'number' : ''}>
                    {cell(row)}
                  </td>
                ))}
              </tr>
            )
          })}
        </tbody>
      </table>
      {rows.length > shownMax ? (
        <button type="button" class="button more" onClick={() => setShownMax(shownMax + ROWS_SHOWN)}>
          Show {Math.min(ROWS_SHOWN, rows.length - shownMax)} more of {rows.length}
        </button>
      ) : null}
    </div>
  )
}

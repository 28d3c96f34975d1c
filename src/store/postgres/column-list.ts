/**
 * The columns of a statement that writes many rows: one array parameter for each column, which the statement turns back into
 * rows by `unnest`. A list names each column once, with its type and where its value comes from, so that the parameters' numbers,
 * their types and their values can't disagree. Arrays instead of JSON because of their speed: see `binary-array.ts`.
 */
import * as arrays from './binary-array.ts'

/** One column: its PostgreSQL type, and how the values of many rows become one array. */
export type Column<Row> = { readonly type: string; readonly encode: (rows: readonly Row[]) => Buffer }

function columnOf<Value>(type: string, encode: (values: readonly Value[]) => Buffer) {
  return <Row>(valueOf: (row: Row) => Value): Column<Row> => ({ type, encode: (rows) => encode(rows.map(valueOf)) })
}

/** Columns by type, made from a function that reads a row's value; undefined can't be written, null can. */
export const uuid = columnOf('uuid', arrays.uuids)
export const text = columnOf('text', arrays.texts)
export const json = columnOf('json', arrays.jsons)
export const integer = columnOf('integer', arrays.integers)
export const bigint = columnOf('bigint', arrays.bigints)
export const boolean = columnOf('boolean', arrays.booleans)
export const timestamptz = columnOf('timestamptz', arrays.instants)
export const bytea = columnOf('bytea', arrays.byteStrings)

/** The columns of one kind of row. */
export type ColumnList<Row> = {
  /** The names in order, for the column list of a SELECT or INSERT. */
  readonly names: string
  /** How many parameters the columns take. */
  readonly count: number
  /**
   * SQL that gives the rows back, `unnest($4::uuid[], …) AS r(id, …)`, with parameters numbered from `first`. With
   * `hidesCount` the planner doesn't see how many rows there are, so that one plan serves every number of rows.
   */
  unnest(as: { readonly alias: string; readonly first: number; readonly hidesCount?: boolean }): string
  /** The parameters' values. */
  valuesOf(rows: readonly Row[]): readonly Buffer[]
}

/** Makes a list of columns, by name. */
export function columnList<Row>(columns: Readonly<Record<string, Column<Row>>>): ColumnList<Row> {
  const all = Object.values(columns)
  const names = Object.keys(columns).join(', ')
  return {
    names,
    count: all.length,
    unnest({ alias, first, hidesCount = false }) {
      const parameters = all.map(({ type }, at) => `$${String(first + at)}::${type}[]`)
      if (hidesCount) parameters[0] = `(SELECT ${String(parameters[0])})`
      return `unnest(${parameters.join(', ')}) AS ${alias}(${names})`
    },
    valuesOf: (rows) => all.map(({ encode }) => encode(rows)),
  }
}

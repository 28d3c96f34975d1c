/**
 * The columns of a statement that writes many rows. Each column is one array parameter, and the statement turns the
 * arrays back into rows with `unnest`. A column list defines the name, type and source of each column in one place.
 * Therefore the parameters' numbers, types and values always agree. Arrays are faster than JSON: see `binary-array.ts`.
 */
import * as arrays from './binary-array.ts'

/** One column: its PostgreSQL type, and a function that encodes its values of many rows as one array. */
export type Column<Row> = { readonly type: string; readonly encode: (rows: readonly Row[]) => Buffer }

function columnOf<Value>(type: string, encode: (values: readonly Value[]) => Buffer) {
  return <Row>(valueOf: (row: Row) => Value): Column<Row> => ({ type, encode: (rows) => encode(rows.map(valueOf)) })
}

/**
 * One function per column type. Its argument reads the column's value from a row. The value may be null, but not
 * undefined.
 */
export const uuid = columnOf('uuid', arrays.uuids)
export const text = columnOf('text', arrays.texts)
export const json = columnOf('json', arrays.jsons)
export const integer = columnOf('integer', arrays.integers)
export const bigint = columnOf('bigint', arrays.bigints)
export const boolean = columnOf('boolean', arrays.booleans)
export const timestamptz = columnOf('timestamptz', arrays.instants)
export const bytea = columnOf('bytea', arrays.byteStrings)

/**
 * SQL for the rows of an array of ids, in their order: `(SELECT … LIMIT …) AS w(id)`. The LIMIT exists only for PostgreSQL's
 * planner, which can't see the length of the array in it. It expects one row and therefore uses one plan for any number.
 * Without it, the planner expects ten rows of an unknown array, finds that plan too costly, and plans the statement
 * again each time it runs. That took 0.2 to 0.85 ms for each statement, and its execution 0.02 to 0.06 ms (2026-11).
 */
export function idRows(parameter: `$${number}`, alias: string): string {
  return `(SELECT * FROM unnest(${parameter}::uuid[]) LIMIT cardinality(${parameter}::uuid[])) AS ${alias}(id)`
}

/** The columns of one kind of row. */
export type ColumnList<Row> = {
  /** The column names in order, for the column list of a SELECT or INSERT. */
  readonly names: string
  /** The number of parameters of these columns. */
  readonly count: number
  /**
   * SQL that turns the parameters back into rows: `unnest($4::uuid[], …) AS r(id, …)`. Parameters are numbered from
   * `first`. With `hidesCount` the planner can't see the number of rows, and therefore uses one plan for any number.
   */
  unnest(as: { readonly alias: string; readonly first: number; readonly hidesCount?: boolean }): string
  /** Encodes the values of the parameters. */
  valuesOf(rows: readonly Row[]): readonly Buffer[]
}

/** Creates a column list. The keys of `columns` are the column names. */
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

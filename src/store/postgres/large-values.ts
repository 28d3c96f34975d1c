import type { BindConfig, Connection } from 'pg'
import { totalBytes } from '../../lib/streams/buffer-pieces.ts'

/** A value of a statement that is sent piece by piece. It is in PostgreSQL's binary format. */
export class LargeValue {
  readonly pieces: readonly Buffer[]

  constructor(pieces: readonly Buffer[]) {
    this.pieces = pieces
  }
}

/**
 * Makes a connection send statements that have large values. `pg` copies the values of a statement into one buffer,
 * which grows meanwhile: for 8 MiB, that took 10 to 13 ms in one turn of the event loop (2026-11).
 */
export function acceptLargeValues(connection: Connection): void {
  const bind = connection.bind.bind(connection)
  connection.bind = (config, more) => {
    const values: readonly unknown[] = config?.values ?? []
    if (config === null || !values.some((value) => value instanceof LargeValue)) bind(config, more)
    else for (const part of encodeBind(config, values)) connection.stream.write(part)
  }
}

/** The formats of parameters and results. */
const [TEXT, BINARY] = [0, 1] as const

type Parameter = { readonly format: typeof TEXT | typeof BINARY; readonly pieces: readonly Buffer[] | null }

/** The message Bind in parts (PostgreSQL's documentation, "Message Formats"). */
function encodeBind({ portal, statement, binary, valueMapper }: BindConfig, values: readonly unknown[]): Buffer[] {
  const parameters = values.map((value, index): Parameter => {
    if (value instanceof LargeValue) return { format: BINARY, pieces: value.pieces }
    const mapped: unknown = valueMapper === undefined ? value : valueMapper(value, index)
    if (mapped === null || mapped === undefined) return { format: TEXT, pieces: null }
    if (Buffer.isBuffer(mapped)) return { format: BINARY, pieces: [mapped] }
    if (typeof mapped === 'string') return { format: TEXT, pieces: [Buffer.from(mapped)] }
    throw new Error(`parameter ${String(index + 1)} is neither bytes nor text`)
  })
  const body = [
    Buffer.from(`${portal ?? ''}\0${statement ?? ''}\0`),
    int16s(parameters.length, ...parameters.map(({ format }) => format), parameters.length),
    ...parameters.flatMap(({ pieces }) => (pieces === null ? [int32(-1)] : [int32(totalBytes(pieces)), ...pieces])),
    int16s(1, binary ? BINARY : TEXT),
  ]
  return [Buffer.from('B'), int32(4 + totalBytes(body)), ...body]
}

function int16s(...numbers: readonly number[]): Buffer {
  const bytes = Buffer.alloc(2 * numbers.length)
  for (const [index, number] of numbers.entries()) bytes.writeInt16BE(number, 2 * index)
  return bytes
}

/** A number as four bytes. */
export function int32(number: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeInt32BE(number)
  return bytes
}

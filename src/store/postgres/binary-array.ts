/**
 * Arrays in PostgreSQL's binary format (`array_recv` in its source). They pass many rows to a statement. When the rows
 * were passed as JSON, the server spent 45 of its 140 us for each created sandbox on parsing them (2026-11).
 */
import { totalBytes } from '../../lib/streams/buffer-pieces.ts'
import { isUuid } from '../../lib/uuid.ts'
import { int32, LargeValue } from './large-values.ts'

/** PostgreSQL's ids of its types (`pg_type.oid`). They are part of the wire protocol and never change. */
const OID = { bool: 16, bytea: 17, int8: 20, int4: 23, text: 25, json: 114, timestamptz: 1184, uuid: 2950 } as const

/** Encodes an array of `text`. */
export function texts(values: readonly (string | null)[]): Buffer {
  return encodeTexts(OID.text, values)
}

/** Encodes an array of `json` from JSON texts. */
export function jsons(values: readonly (string | null)[]): Buffer {
  return encodeTexts(OID.json, values)
}

/** A JSON text, a large one in UTF-8 in pieces. */
export type JsonText = string | readonly Buffer[]

/** The same without nulls. The pieces of large texts are not copied. */
export function largeJsons(values: readonly JsonText[]): Buffer | LargeValue {
  const isLarge = values.some((value) => typeof value !== 'string')
  if (!isLarge) return encodeTexts(OID.json, values.filter((value) => typeof value === 'string')) // prettier-ignore
  const texts = values.map((value) => (typeof value === 'string' ? [Buffer.from(value)] : value))
  return new LargeValue([
    writeHead(OID.json, values, HEAD_BYTES),
    ...texts.flatMap((text) => [int32(totalBytes(text)), ...text]),
  ])
}

/** Encodes an array of `uuid` from hyphenated texts. Throws for a text that is no UUID. */
export function uuids(values: readonly (string | null)[]): Buffer {
  return encodeFixed(OID.uuid, 16, values, (array, value, at) => {
    if (!isUuid(value)) throw new Error('a text that is no UUID must never reach the database')
    let to = at
    for (let from = 0; from < value.length; from += 2) {
      if (value.charCodeAt(from) === HYPHEN) from += 1
      array[to] = (nibbleOf(value.charCodeAt(from)) << 4) | nibbleOf(value.charCodeAt(from + 1))
      to += 1
    }
  })
}

/** Encodes an array of `integer`. */
export function integers(values: readonly (number | null)[]): Buffer {
  return encodeFixed(OID.int4, 4, values, (array, value, at) => {
    array.writeInt32BE(value, at)
  })
}

/** Encodes an array of `bigint`. Each value must be a safe integer. */
export function bigints(values: readonly (number | null)[]): Buffer {
  return encodeFixed(OID.int8, 8, values, (array, value, at) => {
    array.writeBigInt64BE(BigInt(value), at)
  })
}

/** Encodes an array of `boolean`. */
export function booleans(values: readonly (boolean | null)[]): Buffer {
  return encodeFixed(OID.bool, 1, values, (array, value, at) => {
    array[at] = value ? 1 : 0
  })
}

/** Encodes an array of `timestamptz`. */
export function instants(values: readonly (Date | null)[]): Buffer {
  return encodeFixed(OID.timestamptz, 8, values, (array, value, at) => {
    // A bigint, because a number would be inexact from 2285 on.
    array.writeBigInt64BE(BigInt(value.getTime() - EPOCH_MS) * 1000n, at)
  })
}

/** Encodes an array of `bytea`. */
export function byteStrings(values: readonly (Buffer | null)[]): Buffer {
  let sizeBytes = HEAD_BYTES
  for (const value of values) sizeBytes += 4 + (value?.length ?? 0)
  const array = writeHead(OID.bytea, values, sizeBytes)
  let at = HEAD_BYTES
  for (const value of values) {
    at = array.writeInt32BE(value?.length ?? NULL, at)
    if (value !== null) at += value.copy(array, at)
  }
  return array
}

/** The length of an array's header: dimensions, whether it has nulls, type, length, first index. */
const HEAD_BYTES = 20
/** The length field of a null element. */
const NULL = -1
/** The epoch of PostgreSQL's timestamps, which count microseconds from 2000-01-01. */
const EPOCH_MS = Date.UTC(2000, 0, 1)

const HYPHEN = 0x2d

/**
 * The value of a hexadecimal digit. The low four bits of `0` to `9` are the value. Those of `a` to `f` and `A` to `F`
 * are the value minus nine.
 */
function nibbleOf(code: number): number {
  return (code & 0xf) + (code > 0x40 ? 9 : 0)
}

function writeHead(oid: number, values: readonly unknown[], sizeBytes: number): Buffer {
  const array = Buffer.allocUnsafe(sizeBytes)
  array.writeInt32BE(1, 0)
  array.writeInt32BE(values.includes(null) ? 1 : 0, 4)
  array.writeInt32BE(oid, 8)
  array.writeInt32BE(values.length, 12)
  array.writeInt32BE(1, 16)
  return array
}

function encodeTexts(oid: number, values: readonly (string | null)[]): Buffer {
  let sizeBytes = HEAD_BYTES
  for (const value of values) sizeBytes += 4 + (value === null ? 0 : Buffer.byteLength(value))
  const array = writeHead(oid, values, sizeBytes)
  let at = HEAD_BYTES
  for (const value of values) {
    const writtenBytes = value === null ? NULL : array.write(value, at + 4)
    array.writeInt32BE(writtenBytes, at)
    at += 4 + Math.max(0, writtenBytes)
  }
  return array
}

function encodeFixed<Value>(
  oid: number,
  valueBytes: number,
  values: readonly (Value | null)[],
  write: (array: Buffer, value: Value, at: number) => void,
): Buffer {
  const array = writeHead(oid, values, HEAD_BYTES + values.length * (4 + valueBytes))
  let at = HEAD_BYTES
  for (const value of values) {
    array.writeInt32BE(value === null ? NULL : valueBytes, at)
    at += 4
    if (value === null) continue
    write(array, value, at)
    at += valueBytes
  }
  return array.subarray(0, at)
}

/** Reads which addresses a DNS answer gives a name (RFC 1035, 4.1). */
import type { NamedAddress } from '../../egress/name-ties.ts'
import { NAME_MAX_BYTES } from './dns-message.ts'

const HEADER_BYTES = 12
const TYPE = { a: 1, cname: 5 } as const
/** The most links of a chain of aliases that is followed. */
const ALIASES_MAX = 16
const POINTERS_MAX = 64

/**
 * The IPv4 addresses that an answer gives the name that was asked for, also by aliases. The time to live is the shortest of
 * the chain. Null for an invalid message.
 */
export function readNamedAddresses(message: Buffer): readonly NamedAddress[] | null {
  try {
    const question = readName(message, HEADER_BYTES)
    const records = readRecords(message, question.end + 4)
    let name = question.name
    let ttlSecs = Infinity
    for (let links = 0; links < ALIASES_MAX; links++) {
      const alias = records.find((record) => record.type === TYPE.cname && record.name === name)
      if (alias === undefined) break
      name = readName(message, alias.at).name
      ttlSecs = Math.min(ttlSecs, alias.ttlSecs)
    }
    return records
      .filter((record) => record.type === TYPE.a && record.name === name && record.length === 4)
      .map(({ at, ttlSecs: own }) => ({
        address: [...message.subarray(at, at + 4)].join('.'),
        ttlSecs: Math.min(ttlSecs, own),
      }))
  } catch (error) {
    if (error instanceof RangeError) return null
    throw error
  }
}

type DnsRecord = {
  readonly name: string
  readonly type: number
  readonly ttlSecs: number
  /** The offset and length of its data. */
  readonly at: number
  readonly length: number
}

function readRecords(message: Buffer, start: number): readonly DnsRecord[] {
  const records: DnsRecord[] = []
  let at = start
  for (let left = message.readUInt16BE(6); left > 0; left--) {
    const { name, end } = readName(message, at)
    const length = message.readUInt16BE(end + 8)
    // a time to live with the highest bit set counts as 0 (RFC 2181, 8)
    const ttlSecs = message.readInt32BE(end + 4)
    records.push({ name, type: message.readUInt16BE(end), ttlSecs: Math.max(0, ttlSecs), at: end + 10, length })
    at = end + 10 + length
    if (at > message.length) throw new RangeError('a record is too long')
  }
  return records
}

/** Reads a name in lower case, and the offset after it. Its length is bounded, because each record may refer to the same name. */
function readName(message: Buffer, start: number): { readonly name: string; readonly end: number } {
  const labels: string[] = []
  let at = start
  let end: number | null = null
  let bytes = 1
  for (let pointers = 0; ;) {
    const length = message.readUInt8(at)
    if (length >= 0xc0) {
      end ??= at + 2
      at = message.readUInt16BE(at) & 0x3fff
      pointers += 1
      if (pointers > POINTERS_MAX) throw new RangeError('a name refers to itself')
    } else if (length > 63) throw new RangeError('a label is too long')
    else if (length === 0) return { name: labels.join('.'), end: end ?? at + 1 }
    else {
      if (at + 1 + length > message.length) throw new RangeError('a label is cut')
      bytes += 1 + length
      if (bytes > NAME_MAX_BYTES) throw new RangeError('a name is too long')
      labels.push(message.toString('latin1', at + 1, at + 1 + length).toLowerCase())
      at += 1 + length
    }
  }
}

import { FileFailure } from './guest-files.ts'
import type { FileAttrs, FileStat, FolderItem } from './guest-files.ts'

// The fields of messages to and from guest/files.pl. What comes from there is read with care: it may be anything.

/** A number of 32 bits. */
export function encodeU32(value: number): Buffer {
  const field = Buffer.allocUnsafe(4)
  field.writeUInt32BE(value >>> 0, 0)
  return field
}

/** A number of 64 bits, negative ones too. */
export function encodeI64(value: number): Buffer {
  const field = Buffer.allocUnsafe(8)
  field.writeBigInt64BE(BigInt(value), 0)
  return field
}

/** Bytes with their length before them. */
export function encodeWithLength(bytes: Buffer): Buffer {
  return Buffer.concat([encodeU32(bytes.length), bytes])
}

/** What is to change: a bit for each that is, then all of them. */
export function encodeAttrs({ size, mode, uid, gid, atime, mtime }: FileAttrs): Buffer {
  const has = [size, mode, uid, gid, atime, mtime].reduce<number>(
    (bits, value, index) => bits | (value === null ? 0 : 1 << index),
    0,
  )
  const owner = [encodeU32(uid ?? 0), encodeU32(gid ?? 0)]
  const times = [encodeI64(atime ?? 0), encodeI64(mtime ?? 0)]
  return Buffer.concat([Buffer.from([has]), encodeI64(size ?? 0), encodeU32(mode ?? 0), ...owner, ...times])
}

/** A text; what is not UTF-8 in it is replaced. */
export function decodeText(bytes: Buffer): string {
  return bytes.toString('utf8')
}

/** What a stat takes. */
export const STAT_BYTES = 36

/** A stat. Throws `FileFailure` for anything else. */
export function decodeStat(bytes: Buffer): FileStat {
  if (bytes.length < STAT_BYTES) throw notUnderstood()
  return {
    mode: bytes.readUInt32BE(0),
    uid: bytes.readUInt32BE(4),
    gid: bytes.readUInt32BE(8),
    size: Math.max(0, clamp(bytes.readBigInt64BE(12))),
    atime: clamp(bytes.readBigInt64BE(20)),
    mtime: clamp(bytes.readBigInt64BE(28)),
  }
}

/** One item after the other until the bytes end. Throws `FileFailure` when they end within one. */
export function decodeList<T>(
  bytes: Buffer,
  read: (from: Buffer) => { readonly item: T; readonly bytes: number },
): T[] {
  const items: T[] = []
  for (let at = 0; at < bytes.length;) {
    const next = read(bytes.subarray(at))
    items.push(next.item)
    at += next.bytes
  }
  return items
}

/** A name in a folder with its stat, and how many bytes they took. */
export function decodeEntry(bytes: Buffer): { readonly item: FolderItem; readonly bytes: number } {
  const start = 1 + STAT_BYTES + 2
  if (bytes.length < start) throw notUnderstood()
  const end = start + bytes.readUInt16BE(start - 2)
  if (bytes.length < end) throw notUnderstood()
  const stat = bytes[0] === 1 ? decodeStat(bytes.subarray(1)) : null
  return { item: { name: decodeText(bytes.subarray(start, end)), stat }, bytes: end }
}

function notUnderstood(): FileFailure {
  return new FileFailure('files: the helper process in the sandbox gave no sense')
}

/** The nearest number that JavaScript counts exactly: a file may claim any time. */
function clamp(value: bigint): number {
  const max = BigInt(Number.MAX_SAFE_INTEGER)
  return Number(value > max ? max : value < -max ? -max : value)
}

import { CborError, asFlag, asInteger, asMap, asText, asUnsigned64, decodeCbor } from '../../channel/cbor.ts'
import type { FileAttrs, FileStat, FileUser, OpenOptions } from './guest-files.ts'

/** An operation of `core.fs.request`. `op` is its name in the agent protocol. */
export type FsOperation =
  | Operation<'RealPath' | 'List' | 'ReadLink' | 'Remove' | 'OpenDir', { readonly path: string }>
  | Operation<'Stat', { readonly path: string; readonly follow: boolean }>
  | Operation<'SetStat', { readonly path: string; readonly follow: boolean; readonly attrs: FileAttrs }>
  | Operation<'Symlink', { readonly target: string; readonly path: string; readonly user: FileUser }>
  | Operation<'Mkdir', { readonly path: string; readonly mode: number | null; readonly user: FileUser }>
  | Operation<'RemoveDir', { readonly path: string; readonly recursive: boolean }>
  | Operation<'Copy' | 'Rename', { readonly from: string; readonly to: string }>
  | Operation<'OpenFile', { readonly path: string; readonly options: OpenOptions }>
  | Operation<'CloseHandle' | 'FStat', { readonly handle: number }>
  | Operation<'Read' | 'Write', FileRange>
  | Operation<'ReadDir', { readonly handle: number; readonly limit: number | null }>
  | Operation<'FSetStat', { readonly handle: number; readonly attrs: FileAttrs }>

/**
 * A part of an open file. Without a length, a read continues to the end of the file, and a write accepts data until the
 * client ends it.
 */
export type FileRange = { readonly handle: number; readonly offset: number; readonly length: number | null }

/** Distributes over a union of names, so that the result is a union with one operation type for each name. */
type Operation<Name extends string, Fields> = Name extends Name ? { readonly op: Name } & Fields : never

type FsOperationName = FsOperation['op']

/** Decodes `core.fs.request`. Throws `CborError` for a wrong shape or an unknown operation. */
export function readFsRequest(payload: Uint8Array): FsOperation {
  const variants = Object.entries(asMap(asMap(decodeCbor(payload))['op']))
  const [variant] = variants
  if (variant === undefined || variants.length > 1) throw new CborError('one operation was expected')
  const [name, fields] = variant
  if (!isOperation(name)) throw new CborError('the operation is unknown')
  return READERS[name](asMap(fields))
}

/** The result of an operation: a variant of `core.fs.response`, or null. */
export type FsResult = Readonly<Record<string, unknown>> | null

/** The fields of a successful `core.fs.response`. */
export function okPayload(data: FsResult): Readonly<Record<string, unknown>> {
  return { ok: true, error: null, data }
}

/** The fields of a failed `core.fs.response`. The client derives an SFTP status from the error text. */
export function errorPayload(error: string): Readonly<Record<string, unknown>> {
  return { ok: false, error, data: null }
}

/** Returns the payload that describes the file at a path. Without a stat, it contains only the path. */
export function entryPayload(path: string, stat: FileStat | null): Readonly<Record<string, unknown>> {
  if (stat === null) {
    return { path, kind: 'other', size: 0, mode: 0, modified: null, uid: 0, gid: 0, atime: null, mtime: null }
  }
  const { size, mode, uid, gid, atime, mtime } = stat
  return { path, kind: KINDS.get(mode & TYPE_BITS) ?? 'other', size, mode, modified: mtime, uid, gid, atime, mtime }
}

/** The type bits of a mode, and the protocol's names for them (inode(7)). */
const TYPE_BITS = 0o170000
const KINDS: ReadonlyMap<number, string> = new Map([
  [0o100000, 'file'],
  [0o040000, 'dir'],
  [0o120000, 'symlink'],
])

type Fields = Readonly<Record<string, unknown>>

const READERS: { readonly [op in FsOperationName]: (fields: Fields) => FsOperation } = {
  RealPath: ({ path }) => ({ op: 'RealPath', path: asText(path) }),
  Stat: ({ path, follow_symlink }) => ({ op: 'Stat', path: asText(path), follow: asFlag(follow_symlink) }),
  SetStat: ({ path, follow_symlink, attrs }) => {
    return { op: 'SetStat', path: asText(path), follow: asFlag(follow_symlink), attrs: asAttrs(attrs) }
  },
  List: ({ path }) => ({ op: 'List', path: asText(path) }),
  ReadLink: ({ path }) => ({ op: 'ReadLink', path: asText(path) }),
  Symlink: ({ target, link_path, user }) => {
    return { op: 'Symlink', target: asText(target), path: asText(link_path), user: asOptional(user, asText) }
  },
  Mkdir: ({ path, mode, user }) => {
    return { op: 'Mkdir', path: asText(path), mode: asOptional32(mode), user: asOptional(user, asText) }
  },
  Remove: ({ path }) => ({ op: 'Remove', path: asText(path) }),
  RemoveDir: ({ path, recursive }) => ({ op: 'RemoveDir', path: asText(path), recursive: asFlag(recursive) }),
  Copy: ({ src, dst }) => ({ op: 'Copy', from: asText(src), to: asText(dst) }),
  Rename: ({ src, dst }) => ({ op: 'Rename', from: asText(src), to: asText(dst) }),
  OpenFile: ({ path, options }) => ({ op: 'OpenFile', path: asText(path), options: asOptions(options) }),
  OpenDir: ({ path }) => ({ op: 'OpenDir', path: asText(path) }),
  CloseHandle: ({ handle }) => ({ op: 'CloseHandle', handle: asUnsigned64(handle) }),
  Read: (fields) => ({ op: 'Read', ...asRange(fields) }),
  Write: (fields) => ({ op: 'Write', ...asRange(fields) }),
  ReadDir: ({ handle, limit }) => ({ op: 'ReadDir', handle: asUnsigned64(handle), limit: asOptional32(limit) }),
  FStat: ({ handle }) => ({ op: 'FStat', handle: asUnsigned64(handle) }),
  FSetStat: ({ handle, attrs }) => ({ op: 'FSetStat', handle: asUnsigned64(handle), attrs: asAttrs(attrs) }),
}

function isOperation(name: string): name is FsOperationName {
  return Object.hasOwn(READERS, name)
}

function asRange({ handle, offset, len }: Fields): FileRange {
  return { handle: asUnsigned64(handle), offset: asUnsigned64(offset), length: asOptional(len, asUnsigned64) }
}

function asAttrs(value: unknown): FileAttrs {
  const { mode, uid, gid, size, atime, mtime } = asMap(value)
  return {
    mode: asOptional32(mode),
    uid: asOptional32(uid),
    gid: asOptional32(gid),
    size: asOptional(size, asUnsigned64),
    atime: asOptional(atime, asSigned64),
    mtime: asOptional(mtime, asSigned64),
  }
}

function asOptions(value: unknown): OpenOptions {
  const { read, write, append, create, truncate, create_new, mode, user } = asMap(value)
  return {
    read: asFlag(read),
    write: asFlag(write),
    append: asFlag(append),
    create: asFlag(create),
    truncate: asFlag(truncate),
    createNew: asFlag(create_new),
    mode: asOptional32(mode),
    user: asOptional(user, asText),
  }
}

function asOptional<T>(value: unknown, read: (value: unknown) => T): T | null {
  return value === undefined || value === null ? null : read(value)
}

function asOptional32(value: unknown): number | null {
  return asOptional(value, (given) => asInteger(given, { min: 0, max: 0xffff_ffff }))
}

/** Returns a signed 64-bit number. A number beyond JavaScript's safe integers becomes the nearest safe integer. */
function asSigned64(value: unknown): number {
  if (typeof value === 'bigint') return value > 0n ? Number.MAX_SAFE_INTEGER : Number.MIN_SAFE_INTEGER
  return asInteger(value, { min: Number.MIN_SAFE_INTEGER, max: Number.MAX_SAFE_INTEGER })
}

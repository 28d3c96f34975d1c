import { connectFilesHelper } from './files-connection.ts'
import {
  type FileAttrs,
  FileFailure,
  type FileStat,
  type FileUser,
  type FolderItem,
  type GuestFiles,
  MAX_ITEMS,
  MAX_PIECE_BYTES,
} from './guest-files.ts'
import type { GuestProcess } from './guest.ts'

/** Linux's limits on the length of a path and of a file name (linux/limits.h). */
const MAX_PATH_BYTES = 4096
const MAX_NAME_BYTES = 255
/** The maximum length of the name of a user with a group. */
const MAX_USER_BYTES = 512
/** The size of an encoded `FileStat`. */
const STAT_BYTES = 36
/** The maximum size of one encoded `FolderItem`. */
const ITEM_BYTES = 1 + STAT_BYTES + 2 + MAX_NAME_BYTES

/** The numbers of the operations in `guest/files.pl`. */
const OPERATION = { realPath: 1, stat: 2, setStat: 3, readLink: 4, symlink: 5, makeFolder: 6, remove: 7, removeFolder: 8, rename: 9, openFile: 10, openFolder: 11, closeSlot: 12, read: 13, write: 14, readFolder: 15, statSlot: 16, setStatSlot: 17, copy: 18, removeTree: 19, step: 20, asUser: 21 } as const // prettier-ignore

/** The operations that `asUser` accepts. */
type UserOperation = 'symlink' | 'makeFolder' | 'openFile'

/**
 * Creates a client for a process that runs `guest/files.pl`. Each file operation is a request to that process, and
 * `close` ends the process.
 */
export function makeFilesClient(process: GuestProcess): GuestFiles {
  const line = connectFilesHelper(process)

  const ask = async (operation: keyof typeof OPERATION, fields: readonly Buffer[], maxBytes = 0): Promise<Buffer> =>
    await line.request(OPERATION[operation], fields, maxBytes)
  const done = async (operation: keyof typeof OPERATION, fields: readonly Buffer[]): Promise<void> => {
    await ask(operation, fields)
  }
  /** Like `done`, but as another user than user 0. */
  const doneAs = async (user: FileUser, operation: UserOperation, fields: readonly Buffer[]): Promise<void> => {
    if (user === null) return await done(operation, fields)
    const name = Buffer.from(user)
    if (name.length > MAX_USER_BYTES) throw new FileFailure('user: File name too long (os error 36)')
    const length = Buffer.from([name.length >> 8, name.length & 0xff])
    await done('asUser', [length, name, Buffer.from([OPERATION[operation]]), ...fields])
  }
  /** Runs a long task step by step, so that requests of other sessions can run between two steps. */
  const finish = async (slot: number): Promise<void> => {
    for (;;) {
      const isOver = await ask('step', [encodeU32(slot)], 1)
      if (isOver[0] === 1) return
    }
  }
  const stat = async (operation: 'stat' | 'statSlot', fields: readonly Buffer[]): Promise<FileStat> =>
    decodeStat(await ask(operation, fields, STAT_BYTES))

  return {
    realPath: async (path) => decodeText(await ask('realPath', [pathField(path, 'realpath')], 2 * MAX_PATH_BYTES)),
    stat: async (path, { follow }) => await stat('stat', [flag(follow), pathField(path, 'stat')]),
    setStat: async (path, attrs, { follow }) => {
      await done('setStat', [flag(follow), encodeAttrs(attrs), pathField(path, 'setstat')])
    },
    readLink: async (path) => decodeText(await ask('readLink', [pathField(path, 'readlink')], MAX_PATH_BYTES)),
    symlink: async (target, path, user) => {
      await doneAs(user, 'symlink', [encodeWithLength(pathField(target, 'symlink')), pathField(path, 'symlink')])
    },
    makeFolder: async (path, mode, user) => {
      await doneAs(user, 'makeFolder', [flag(mode !== null), encodeU32(mode ?? 0), pathField(path, 'mkdir')])
    },
    remove: async (path) => {
      await done('remove', [pathField(path, 'remove')])
    },
    removeFolder: async (path) => {
      await done('removeFolder', [pathField(path, 'remove_dir')])
    },
    removeTree: async (slot, path) => {
      await done('removeTree', [encodeU32(slot), pathField(path, 'remove_dir')])
      await finish(slot)
    },
    copy: async (slot, from, to) => {
      await done('copy', [encodeU32(slot), encodeWithLength(pathField(from, 'copy')), pathField(to, 'copy')])
      await finish(slot)
    },
    rename: async (from, to) => {
      await done('rename', [encodeWithLength(pathField(from, 'rename')), pathField(to, 'rename')])
    },
    openFile: async (slot, path, options) => {
      const { read, write, append, create, truncate, createNew, mode, user } = options
      const wants = [read, write, append, create, truncate, createNew].reduce(
        (bits, isWanted, index) => bits | (isWanted ? 1 << index : 0),
        0,
      )
      const how = [Buffer.from([wants]), flag(mode !== null), encodeU32(mode ?? 0)]
      await doneAs(user, 'openFile', [encodeU32(slot), ...how, pathField(path, 'open')])
    },
    openFolder: async (slot, path) => {
      await done('openFolder', [encodeU32(slot), pathField(path, 'opendir')])
    },
    closeSlot: async (slot) => {
      await done('closeSlot', [encodeU32(slot)])
    },
    read: async (slot, offset, bytes) =>
      await ask('read', [encodeU32(slot), encodeI64(offset), encodeU32(Math.min(bytes, MAX_PIECE_BYTES))], bytes),
    write: async (slot, offset, data) => {
      await done('write', [encodeU32(slot), flag(offset === null), encodeI64(offset ?? 0), data])
    },
    readFolder: async (slot, limit) => {
      const items = Math.min(limit, MAX_ITEMS)
      return decodeList(await ask('readFolder', [encodeU32(slot), encodeU32(items)], items * ITEM_BYTES), decodeEntry)
    },
    statSlot: async (slot) => await stat('statSlot', [encodeU32(slot)]),
    setStatSlot: async (slot, attrs) => {
      await done('setStatSlot', [encodeU32(slot), encodeAttrs(attrs)])
    },
    get hasEnded() {
      return line.hasEnded
    },
    close: () => line.close(),
  }
}

function pathField(path: string, what: string): Buffer {
  const bytes = Buffer.from(path, 'utf8')
  if (path.includes('\0')) throw new FileFailure(`${what}: a path with a NUL byte: Invalid argument (os error 22)`)
  if (bytes.length >= MAX_PATH_BYTES) throw new FileFailure(`${what}: File name too long (os error 36)`)
  return bytes
}

function flag(isSet: boolean): Buffer {
  return Buffer.from([isSet ? 1 : 0])
}

// The functions below encode and decode the fields of messages to and from guest/files.pl. Decoding is strict, because
// the sandbox may send any bytes.

/** Encodes an unsigned 32-bit number. */
function encodeU32(value: number): Buffer {
  const field = Buffer.allocUnsafe(4)
  field.writeUInt32BE(value >>> 0, 0)
  return field
}

/** Encodes a signed 64-bit number. */
function encodeI64(value: number): Buffer {
  const field = Buffer.allocUnsafe(8)
  field.writeBigInt64BE(BigInt(value), 0)
  return field
}

/** Encodes bytes with their length before them. */
function encodeWithLength(bytes: Buffer): Buffer {
  return Buffer.concat([encodeU32(bytes.length), bytes])
}

/**
 * Encodes the attributes to change: first one bit for each attribute that changes, then the values of all attributes.
 */
function encodeAttrs({ size, mode, uid, gid, atime, mtime }: FileAttrs): Buffer {
  const has = [size, mode, uid, gid, atime, mtime].reduce<number>(
    (bits, value, index) => bits | (value === null ? 0 : 1 << index),
    0,
  )
  const owner = [encodeU32(uid ?? 0), encodeU32(gid ?? 0)]
  const times = [encodeI64(atime ?? 0), encodeI64(mtime ?? 0)]
  return Buffer.concat([Buffer.from([has]), encodeI64(size ?? 0), encodeU32(mode ?? 0), ...owner, ...times])
}

/** Decodes UTF-8 and replaces invalid bytes. */
function decodeText(bytes: Buffer): string {
  return bytes.toString('utf8')
}

/** Decodes a stat. Throws `FileFailure` when bytes are missing. */
function decodeStat(bytes: Buffer): FileStat {
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

/** Decodes items until the bytes end. Throws `FileFailure` when the bytes end within an item. */
function decodeList<T>(bytes: Buffer, read: (from: Buffer) => { readonly item: T; readonly bytes: number }): T[] {
  const items: T[] = []
  for (let at = 0; at < bytes.length;) {
    const next = read(bytes.subarray(at))
    items.push(next.item)
    at += next.bytes
  }
  return items
}

/** Decodes a folder entry. Returns the entry and its encoded size in bytes. */
function decodeEntry(bytes: Buffer): { readonly item: FolderItem; readonly bytes: number } {
  const start = 1 + STAT_BYTES + 2
  if (bytes.length < start) throw notUnderstood()
  const end = start + bytes.readUInt16BE(start - 2)
  if (bytes.length < end) throw notUnderstood()
  const stat = bytes[0] === 1 ? decodeStat(bytes.subarray(1)) : null
  return { item: { name: decodeText(bytes.subarray(start, end)), stat }, bytes: end }
}

function notUnderstood(): FileFailure {
  return new FileFailure('files: the helper process in the sandbox sent an invalid reply')
}

/** Returns the nearest safe integer. Needed because the time of a file may be any 64-bit number. */
function clamp(value: bigint): number {
  const max = BigInt(Number.MAX_SAFE_INTEGER)
  return Number(value > max ? max : value < -max ? -max : value)
}

import {
  decodeEntry,
  decodeList,
  decodeStat,
  encodeAttrs,
  encodeU32,
  encodeI64,
  STAT_BYTES,
  decodeText,
  encodeWithLength,
} from './files-wire.ts'
import { connectFilesHelper } from './files-connection.ts'
import { FileFailure, MAX_ITEMS, MAX_PIECE_BYTES } from './guest-files.ts'
import type { FileStat, GuestFiles } from './guest-files.ts'
import type { GuestProcess } from './guest.ts'

/** The longest path that Linux takes, and the longest name in a folder (linux/limits.h). */
const MAX_PATH_BYTES = 4096
const MAX_NAME_BYTES = 255

/** The operations of `guest/files.pl` by number. */
const OPERATION = { realPath: 1, stat: 2, setStat: 3, readLink: 4, symlink: 5, makeFolder: 6, remove: 7, removeFolder: 8, rename: 9, openFile: 10, openFolder: 11, closeSlot: 12, read: 13, write: 14, readFolder: 15, statSlot: 16, setStatSlot: 17, copy: 18, removeTree: 19, step: 20 } as const // prettier-ignore

/** File operations by a process that runs `guest/files.pl`; `close` ends it. */
export function makeFilesClient(process: GuestProcess): GuestFiles {
  const line = connectFilesHelper(process)

  const ask = async (operation: keyof typeof OPERATION, fields: readonly Buffer[], maxBytes = 0): Promise<Buffer> =>
    await line.request(OPERATION[operation], fields, maxBytes)
  const done = async (operation: keyof typeof OPERATION, fields: readonly Buffer[]): Promise<void> => {
    await ask(operation, fields)
  }
  /** Long work goes on in steps, so that the questions of other sessions come in between. */
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
    symlink: async (target, path) => {
      await done('symlink', [encodeWithLength(pathField(target, 'symlink')), pathField(path, 'symlink')])
    },
    makeFolder: async (path, mode) => {
      await done('makeFolder', [flag(mode !== null), encodeU32(mode ?? 0), pathField(path, 'mkdir')])
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
      const { read, write, append, create, truncate, createNew, mode } = options
      const wants = [read, write, append, create, truncate, createNew].reduce(
        (bits, isWanted, index) => bits | (isWanted ? 1 << index : 0),
        0,
      )
      const how = [Buffer.from([wants]), flag(mode !== null), encodeU32(mode ?? 0)]
      await done('openFile', [encodeU32(slot), ...how, pathField(path, 'open')])
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

const ITEM_BYTES = 1 + STAT_BYTES + 2 + MAX_NAME_BYTES

function pathField(path: string, what: string): Buffer {
  const bytes = Buffer.from(path, 'utf8')
  if (path.includes('\0')) throw new FileFailure(`${what}: a path with a NUL byte: Invalid argument (os error 22)`)
  if (bytes.length >= MAX_PATH_BYTES) throw new FileFailure(`${what}: File name too long (os error 36)`)
  return bytes
}

function flag(isSet: boolean): Buffer {
  return Buffer.from([isSet ? 1 : 0])
}

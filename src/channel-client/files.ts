import { asInteger, asList, asMap, asText, asUnsigned64 } from '../channel/cbor.ts'
import { decodeData } from '../channel/envelope.ts'
import { type AgentMessage, type Connection, type Payload, fieldsOf, refusalOf } from './connection.ts'
import { errnoOf } from './tcp.ts'

/** A file operation that failed in the sandbox. `errno` is the Linux error number, if the agent told it. */
export class FileFailure extends Error {
  readonly errno: number | null
  constructor(message: string) {
    super(message)
    this.errno = errnoOf(message)
  }
}

/** What a path of a sandbox is. `mode` includes the type bits; times are seconds since 1970. */
export type FileEntry = {
  readonly path: string
  readonly size: number
  readonly mode: number
  readonly uid: number
  readonly gid: number
  readonly atime: number | null
  readonly mtime: number | null
}

/** The attributes to set. Null leaves one as it is. */
export type FileChanges = {
  readonly mode: number | null
  readonly uid: number | null
  readonly gid: number | null
  readonly size: number | null
  readonly atime: number | null
  readonly mtime: number | null
}

export type OpenFlags = {
  readonly read: boolean
  readonly write: boolean
  readonly append: boolean
  readonly create: boolean
  readonly truncate: boolean
  readonly create_new: boolean
  readonly mode: number | null
  /** Who owns a created file, as `uid:gid`. Null: root. */
  readonly user: string | null
}

/** The files of a sandbox. Every operation rejects with `FileFailure` or `ChannelLost`. Handles end with the channel. */
export type Files = {
  /** The absolute path without symlinks. The last component may be missing. */
  realPath(path: string): Promise<string>
  stat(path: string, options: { readonly follow: boolean }): Promise<FileEntry>
  setStat(path: string, changes: FileChanges, options: { readonly follow: boolean }): Promise<void>
  readLink(path: string): Promise<string>
  symlink(target: string, path: string, user: string | null): Promise<void>
  /** Creates a folder and its parents. An existing folder is accepted. */
  mkdir(path: string, mode: number | null, user: string | null): Promise<void>
  rmdir(path: string): Promise<void>
  /** Removes a path that is not a folder. */
  remove(path: string): Promise<void>
  rename(from: string, to: string): Promise<void>
  /** Opens a file and returns its handle. */
  open(path: string, flags: OpenFlags): Promise<number>
  openFolder(path: string): Promise<number>
  /** The next entries of an open folder, as full paths. An empty list is the end. */
  readFolder(handle: number): Promise<readonly FileEntry[]>
  /** Reads at most `length` bytes. Empty at the end of the file. */
  read(handle: number, offset: number, length: number): Promise<Buffer>
  write(handle: number, offset: number, data: Buffer): Promise<void>
  statHandle(handle: number): Promise<FileEntry>
  setStatHandle(handle: number, changes: FileChanges): Promise<void>
  close(handle: number): Promise<void>
}

/** The number of entries that one `readFolder` asks for. */
const FOLDER_ENTRIES = 128

/** Creates the file operations of a channel. Sends nothing. */
export function makeFiles(connection: Connection): Files {
  const run = async (op: string, fields: Payload): Promise<unknown> => (await request(connection, op, fields)).result
  const done = async (op: string, fields: Payload): Promise<void> => {
    await run(op, fields)
  }
  const path = async (op: string, fields: Payload): Promise<string> => asText(asMap(await run(op, fields))['Path'])
  const handle = async (op: string, fields: Payload): Promise<number> =>
    asUnsigned64(asMap(await run(op, fields))['Handle'])
  const entry = async (op: string, fields: Payload): Promise<FileEntry> =>
    readEntry(asMap(await run(op, fields))['Stat'])
  return {
    realPath: (at) => path('RealPath', { path: at }),
    stat: (at, { follow }) => entry('Stat', { path: at, follow_symlink: follow }),
    setStat: (at, attrs, { follow }) => done('SetStat', { path: at, follow_symlink: follow, attrs }),
    readLink: (at) => path('ReadLink', { path: at }),
    symlink: (target, at, user) => done('Symlink', { target, link_path: at, user }),
    mkdir: (at, mode, user) => done('Mkdir', { path: at, mode, user }),
    rmdir: (at) => done('RemoveDir', { path: at, recursive: false }),
    remove: (at) => done('Remove', { path: at }),
    rename: (src, dst) => done('Rename', { src, dst }),
    open: (at, options) => handle('OpenFile', { path: at, options }),
    openFolder: (at) => handle('OpenDir', { path: at }),
    async readFolder(of) {
      return asList(asMap(await run('ReadDir', { handle: of, limit: FOLDER_ENTRIES }))['List'], readEntry)
    },
    async read(of, offset, length) {
      const { data } = await request(connection, 'Read', { handle: of, offset, len: length }, { maxBytes: length })
      return data
    },
    async write(of, offset, data) {
      await request(connection, 'Write', { handle: of, offset, len: data.length }, { upload: data })
    },
    statHandle: (of) => entry('FStat', { handle: of }),
    setStatHandle: (of, attrs) => done('FSetStat', { handle: of, attrs }),
    close: (of) => done('CloseHandle', { handle: of }),
  }
}

/**
 * Runs one operation, and sends `upload` in it. Resolves with the result and the data that the agent sent: it may send
 * `maxBytes`, and none by default.
 */
function request(
  connection: Connection,
  op: string,
  fields: Payload,
  { upload = null, maxBytes = 0 }: { readonly upload?: Buffer | null; readonly maxBytes?: number } = {},
): Promise<{ readonly result: unknown; readonly data: Buffer }> {
  return new Promise((resolve, reject) => {
    const pieces: Buffer[] = []
    let bytes = 0
    const receive = (piece: Buffer): void => {
      bytes += piece.length
      if (bytes > maxBytes) reject(new FileFailure(`${op}: the sandbox sent more data than was asked for`))
      else if (piece.length > 0) pieces.push(piece)
    }
    const onMessage = (message: AgentMessage): void => {
      if (message.type === 'core.fs.data') receive(decodeData(message.payload))
      if (!message.isLast) return
      const refusal = refusalOf(message)
      if (refusal !== null) {
        reject(new FileFailure(refusal))
        return
      }
      const { ok, error, data } = fieldsOf(message)
      if (ok === true) resolve({ result: data, data: Buffer.concat(pieces) })
      else reject(new FileFailure(typeof error === 'string' ? error : `${op} failed`))
    }
    const first = { type: 'core.fs.request', payload: { op: { [op]: fields } } } as const
    const session = connection.start(first, { onMessage, onLost: reject })
    if (upload === null) return
    session.sendData('core.fs.data', upload, () => {
      session.send('core.fs.data', { data: Buffer.alloc(0) })
    })
  })
}

const U32 = { min: 0, max: 0xffff_ffff }

function readEntry(value: unknown): FileEntry {
  const { path, size, mode, uid, gid, atime, mtime } = asMap(value)
  return {
    path: asText(path),
    size: asUnsigned64(size),
    mode: asInteger(mode, U32),
    uid: asInteger(uid, U32),
    gid: asInteger(gid, U32),
    atime: asTime(atime),
    mtime: asTime(mtime),
  }
}

function asTime(value: unknown): number | null {
  return typeof value === 'number' ? value : null
}

/**
 * File attributes as the sandbox's kernel reports them. Times are whole seconds since 1970. `mode` includes the type
 * bits.
 */
export type FileStat = {
  readonly mode: number
  readonly uid: number
  readonly gid: number
  readonly size: number
  readonly atime: number
  readonly mtime: number
}

/** Attributes to change. A null attribute stays unchanged. */
export type FileAttrs = { readonly [name in keyof FileStat]: number | null }

/** One name in a folder. `stat` is null when the file could not be examined. */
export type FolderItem = { readonly name: string; readonly stat: FileStat | null }

/** Options for opening a file. They have the meaning of Rust's `OpenOptions`, which the agent protocol uses. */
export type OpenOptions = {
  readonly read: boolean
  readonly write: boolean
  readonly append: boolean
  readonly create: boolean
  readonly truncate: boolean
  readonly createNew: boolean
  readonly mode: number | null
  readonly user: FileUser
}

/**
 * The user of the sandbox that creates or opens a file: `name`, `uid`, `name:group` or `uid:gid`. Null: user 0.
 */
export type FileUser = string | null

/** A failed operation. The message goes to the client, such as `stat: No such file or directory (os error 2)`. */
export class FileFailure extends Error {}

/**
 * The file operations of one client. A process in the sandbox runs them as the sandbox's user 0. Paths, links, mounts,
 * owners and permissions are therefore those that this user sees.
 *
 * All operations reject with `FileFailure`, also for a NUL in a path. They start in the order of the calls. A slot is a
 * number that the caller chooses to identify an open file or folder. Each client has slots of its own. In names that
 * are not UTF-8, U+FFFD replaces the invalid bytes.
 */
export interface GuestFiles {
  realPath(path: string): Promise<string>
  stat(path: string, options: { readonly follow: boolean }): Promise<FileStat>
  /** Sets the size, then the mode, the owner and the times. The mode of a symlink can't be set. */
  setStat(path: string, attrs: FileAttrs, options: { readonly follow: boolean }): Promise<void>
  readLink(path: string): Promise<string>
  symlink(target: string, path: string, user: FileUser): Promise<void>
  /** Creates a folder and its missing parents. If the folder exists already, only its mode is set. */
  makeFolder(path: string, mode: number | null, user: FileUser): Promise<void>
  remove(path: string): Promise<void>
  removeFolder(path: string): Promise<void>
  /** Removes a folder with everything in it, without following symlinks. Occupies the slot until that is done. */
  removeTree(slot: number, path: string): Promise<void>
  /** Copies the content and mode of a file. Occupies the slot until the copy is done. */
  copy(slot: number, from: string, to: string): Promise<void>
  rename(from: string, to: string): Promise<void>
  openFile(slot: number, path: string, options: OpenOptions): Promise<void>
  openFolder(slot: number, path: string): Promise<void>
  /** Closing a slot that is not open succeeds. */
  closeSlot(slot: number): Promise<void>
  /** Reads at most `bytes` bytes. Returns fewer at the end of the file, and none beyond it. */
  read(slot: number, offset: number, bytes: number): Promise<Buffer>
  /**
   * Writes all of `data` at the offset, or at the end of the file when `offset` is null. Accepts at most
   * `MAX_PIECE_BYTES`.
   */
  write(slot: number, offset: number | null, data: Buffer): Promise<void>
  /** Returns the next entries of a folder, at most `limit` and at most `MAX_ITEMS`. An empty list means the end. */
  readFolder(slot: number, limit: number): Promise<readonly FolderItem[]>
  statSlot(slot: number): Promise<FileStat>
  setStatSlot(slot: number, attrs: FileAttrs): Promise<void>
  /** Whether the process has ended. All its open files are then closed. */
  readonly hasEnded: boolean
  /** Ends the process and resolves once it is reaped. May be repeated. */
  close(): Promise<void>
}

/** The maximum number of bytes in one `read` or `write`. */
export const MAX_PIECE_BYTES = 3 * 1024 * 1024
/** The maximum number of entries in one `readFolder`. */
export const MAX_ITEMS = 512

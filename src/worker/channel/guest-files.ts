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

/** Attributes to change; null leaves one as it is. */
export type FileAttrs = { readonly [name in keyof FileStat]: number | null }

/** One name in a folder. `stat` is null when the file could not be examined. */
export type FolderItem = { readonly name: string; readonly stat: FileStat | null }

/** How to open a file. The options mean what they mean in Rust's `OpenOptions`, which the agent protocol took over. */
export type OpenOptions = {
  readonly read: boolean
  readonly write: boolean
  readonly append: boolean
  readonly create: boolean
  readonly truncate: boolean
  readonly createNew: boolean
  readonly mode: number | null
}

/** A failed operation. The message goes to the client, such as `stat: No such file or directory (os error 2)`. */
export class FileFailure extends Error {}

/**
 * File operations of one client, each done by a process in the sandbox. Paths, links, mounts, owners and permissions
 * are therefore those of the sandbox's user 0.
 *
 * All operations reject with `FileFailure`, also for a NUL in a path. They start in the order of the calls. A slot is a
 * number, chosen by the caller, that stands for something open; clients don't share slots. In names that are not UTF-8,
 * U+FFFD replaces the invalid bytes.
 */
export interface GuestFiles {
  realPath(path: string): Promise<string>
  stat(path: string, options: { readonly follow: boolean }): Promise<FileStat>
  /** Sets the size, then the mode, owner and times. A symlink itself has no mode. */
  setStat(path: string, attrs: FileAttrs, options: { readonly follow: boolean }): Promise<void>
  readLink(path: string): Promise<string>
  symlink(target: string, path: string): Promise<void>
  /** Makes a folder and the missing ones above it. An existing folder is fine, and gets the mode too. */
  makeFolder(path: string, mode: number | null): Promise<void>
  remove(path: string): Promise<void>
  removeFolder(path: string): Promise<void>
  /** Removes a folder with everything in it, without following symlinks. Occupies a slot meanwhile. */
  removeTree(slot: number, path: string): Promise<void>
  /** Copies the content and mode of a file. Occupies a slot meanwhile. */
  copy(slot: number, from: string, to: string): Promise<void>
  rename(from: string, to: string): Promise<void>
  openFile(slot: number, path: string, options: OpenOptions): Promise<void>
  openFolder(slot: number, path: string): Promise<void>
  /** Closing a slot that is not open succeeds. */
  closeSlot(slot: number): Promise<void>
  /** Returns at most `bytes`: fewer at the end of the file, none after it. */
  read(slot: number, offset: number, bytes: number): Promise<Buffer>
  /** Writes all of `data` at the offset, or at the end of the file when it is null. Takes at most `MAX_PIECE_BYTES`. */
  write(slot: number, offset: number | null, data: Buffer): Promise<void>
  /** The next entries of a folder, at most `limit` and `MAX_ITEMS`. An empty list means the end. */
  readFolder(slot: number, limit: number): Promise<readonly FolderItem[]>
  statSlot(slot: number): Promise<FileStat>
  setStatSlot(slot: number, attrs: FileAttrs): Promise<void>
  /** Whether the process has ended, with everything that was open. */
  readonly hasEnded: boolean
  /** Ends the process and resolves once it was reaped. May be repeated. */
  close(): Promise<void>
}

/** The most bytes of one `read` or `write`. */
export const MAX_PIECE_BYTES = 3 * 1024 * 1024
/** The most entries of one `readFolder`. */
export const MAX_ITEMS = 512

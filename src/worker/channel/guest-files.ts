/** What a sandbox's kernel tells of a file. Times are whole seconds since 1970; `mode` has the bits of the type too. */
export type FileStat = {
  readonly mode: number
  readonly uid: number
  readonly gid: number
  readonly size: number
  readonly atime: number
  readonly mtime: number
}

/** What to change of a file; null leaves it as it is. */
export type FileAttrs = { readonly [name in keyof FileStat]: number | null }

/** One name in a folder; without `stat` when it could not be looked at. */
export type FolderItem = { readonly name: string; readonly stat: FileStat | null }

/** How a file is opened, with the meaning that these words have in the agent protocol (section 8.1). */
export type OpenOptions = {
  readonly read: boolean
  readonly write: boolean
  readonly append: boolean
  readonly create: boolean
  readonly truncate: boolean
  readonly createNew: boolean
  readonly mode: number | null
}

/** An operation that failed. The message is for the client: `stat: No such file or directory (os error 2)`. */
export class FileFailure extends Error {}

/**
 * File operations of one client, each done by a process of the sandbox: paths, links, mounts, owners and rights are
 * those that the sandbox's user 0 has. All reject with `FileFailure`, also for a NUL in a path. They are begun in the order
 * in which they are called. A slot is a number, the caller's choice, that stands for something open; slots are not
 * shared with other clients. Names that are not UTF-8 are told with U+FFFD in the place of what is not.
 */
export interface GuestFiles {
  realPath(path: string): Promise<string>
  stat(path: string, options: { readonly follow: boolean }): Promise<FileStat>
  /** Sets the size, then mode, owner and times. A symlink itself has no mode to set. */
  setStat(path: string, attrs: FileAttrs, options: { readonly follow: boolean }): Promise<void>
  readLink(path: string): Promise<string>
  symlink(target: string, path: string): Promise<void>
  /** Makes a folder and those above it; one that is there is fine, and gets the mode too. */
  makeFolder(path: string, mode: number | null): Promise<void>
  remove(path: string): Promise<void>
  removeFolder(path: string): Promise<void>
  /** Removes a folder with all that is in it, following no symlink. Uses a slot while it goes on. */
  removeTree(slot: number, path: string): Promise<void>
  /** Copies the content and the mode of a file. Uses a slot while it goes on. */
  copy(slot: number, from: string, to: string): Promise<void>
  rename(from: string, to: string): Promise<void>
  openFile(slot: number, path: string, options: OpenOptions): Promise<void>
  openFolder(slot: number, path: string): Promise<void>
  /** Closing what is not open succeeds. */
  closeSlot(slot: number): Promise<void>
  /** At most `bytes`; fewer at the end, none after it. */
  read(slot: number, offset: number, bytes: number): Promise<Buffer>
  /** Writes all of `data`; with null as offset at the end of the file. At most `MAX_PIECE_BYTES`. */
  write(slot: number, offset: number | null, data: Buffer): Promise<void>
  /** The next names of a folder, at most `limit` and `MAX_ITEMS`; none at the end. */
  readFolder(slot: number, limit: number): Promise<readonly FolderItem[]>
  statSlot(slot: number): Promise<FileStat>
  setStatSlot(slot: number, attrs: FileAttrs): Promise<void>
  /** Whether the process is gone, and with it all that was open. */
  readonly hasEnded: boolean
  /** Ends the process and resolves when it was reaped. May be repeated. */
  close(): Promise<void>
}

/** The most bytes that one `read` or `write` carries. */
export const MAX_PIECE_BYTES = 3 * 1024 * 1024
/** The most names that one `readFolder` gives. */
export const MAX_ITEMS = 512

import { constants } from 'node:fs'
import { type FileHandle, chmod, chown, open, opendir } from 'node:fs/promises'

/** Linux's O_PATH on every architecture that Node supports. Node's constants lack it. */
const O_PATH = 0o10000000

/**
 * The path of an open descriptor, or of a name in the open folder. The kernel starts at the descriptor, so renaming or
 * replacing files can't redirect the path. If the name is a symlink, only calls that follow symlinks follow it.
 */
export function descriptorPath(handle: FileHandle, name?: string | Buffer): string | Buffer {
  const held = `/proc/self/fd/${String(handle.fd)}`
  if (name === undefined) return held
  return typeof name === 'string' ? `${held}/${name}` : Buffer.concat([Buffer.from(`${held}/`), name])
}

/** The path of an open descriptor for other processes of root. */
export function pathOfWorker({ fd }: FileHandle): string {
  return `/proc/${String(process.pid)}/fd/${String(fd)}`
}

/** Opens a trusted folder of the host by its path. */
export async function openRoot(path: string): Promise<FileHandle> {
  try {
    return await open(path, O_PATH | constants.O_DIRECTORY)
  } catch (error) {
    throw new Error('the folder of a volume is missing', { cause: error })
  }
}

/**
 * Opens a name in a folder with O_PATH, without following a symlink. Such an open reads no data, so it never blocks on
 * a FIFO.
 */
export async function openNoFollow(folder: FileHandle, name: string | Buffer): Promise<FileHandle> {
  return await open(descriptorPath(folder, name), O_PATH | constants.O_NOFOLLOW)
}

/**
 * Opens the file that `held` refers to for reading, even if `held` is an O_PATH descriptor. Check first that it is a
 * regular file.
 */
export async function reopenForReading(held: FileHandle): Promise<FileHandle> {
  return await open(descriptorPath(held), constants.O_RDONLY | constants.O_NONBLOCK)
}

/** Creates a file for writing that only this process's user may access. Fails when the name exists. */
export async function createExclusively(folder: FileHandle, name: string | Buffer): Promise<FileHandle> {
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW
  return await open(descriptorPath(folder, name), flags, 0o600)
}

/** Writes all bytes at a position of an open file. */
export async function writeAt(file: FileHandle, bytes: Buffer, position: number): Promise<void> {
  for (let written = 0; written < bytes.length;) {
    const { bytesWritten } = await file.write(bytes, written, bytes.length - written, position + written)
    written += bytesWritten
  }
}

/** Makes the names in a folder durable, so that a reported change survives a power failure. */
export async function syncFolder(folder: FileHandle): Promise<void> {
  const readable = await open(descriptorPath(folder), constants.O_RDONLY | constants.O_DIRECTORY)
  try {
    await readable.sync()
  } finally {
    await readable.close()
  }
}

/** Lists the names in a folder, unordered, as raw bytes. Names are read on demand. */
export async function* listNames(folder: FileHandle): AsyncGenerator<Buffer> {
  // latin1 preserves each byte, and the types of opendir don't declare the encoding `buffer`
  for await (const entry of await opendir(descriptorPath(folder).toString(), { encoding: 'latin1' }))
    yield Buffer.from(entry.name, 'latin1')
}

/** The ids of a file's owner and group on the host, and the file's permission bits. */
export type Ownership = { readonly uid: number; readonly gid: number; readonly mode: number }

/** The permissions of new files and folders. */
export const FILE_MODE = 0o644
export const FOLDER_MODE = 0o755

/** Sets the owner and mode of an open file or folder that this process created. */
export async function setOwnership(held: FileHandle, { uid, gid, mode }: Ownership): Promise<void> {
  const stats = await held.stat()
  if (stats.uid !== uid || stats.gid !== gid) await chown(descriptorPath(held), uid, gid)
  await chmod(descriptorPath(held), mode) // after the owner, because changing the owner clears set-user-id
}

/**
 * Like `setOwnership`, but for a folder that this process created by name and then opened. If the folder belongs to
 * another user, a sandbox has replaced it, because no sandbox can create files of this process's user. The replacement
 * stays unchanged.
 */
export async function setOwnershipIfOurs(held: FileHandle, ownership: Ownership): Promise<void> {
  const stats = await held.stat()
  if (stats.isDirectory() && stats.uid === process.geteuid?.()) await setOwnership(held, ownership)
}

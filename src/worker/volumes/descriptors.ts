import { constants } from 'node:fs'
import { type FileHandle, chmod, chown, open, opendir } from 'node:fs/promises'

/** O_PATH of Linux on every architecture that Node runs on; Node's constants lack it. */
const O_PATH = 0o10000000

/**
 * The path of what a descriptor holds, or of a name in that folder. The kernel goes from the descriptor itself, so nobody
 * who renames or replaces things can make it lead elsewhere; the name is followed only by calls that follow symlinks.
 */
export function descriptorPath(handle: FileHandle, name?: string | Buffer): string | Buffer {
  const held = `/proc/self/fd/${String(handle.fd)}`
  if (name === undefined) return held
  return typeof name === 'string' ? `${held}/${name}` : Buffer.concat([Buffer.from(`${held}/`), name])
}

/** Holds a trusted folder of the host by its path. */
export async function openRoot(path: string): Promise<FileHandle> {
  try {
    return await open(path, O_PATH | constants.O_DIRECTORY)
  } catch (error) {
    throw new Error('the folder of a volume is not here', { cause: error })
  }
}

/** Holds what lies under a name in a folder, a symlink itself and not where it leads. It opens nothing: a FIFO never waits. */
export async function openNoFollow(folder: FileHandle, name: string | Buffer): Promise<FileHandle> {
  return await open(descriptorPath(folder, name), O_PATH | constants.O_NOFOLLOW)
}

/** Opens for reading the very file that is held; refuse all but regular files before. */
export async function reopenForReading(held: FileHandle): Promise<FileHandle> {
  return await open(descriptorPath(held), constants.O_RDONLY | constants.O_NONBLOCK)
}

/** Makes a file that was not there, open for writing, for nobody but this process's user. */
export async function createExclusively(folder: FileHandle, name: string | Buffer): Promise<FileHandle> {
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW
  return await open(descriptorPath(folder, name), flags, 0o600)
}

/** Makes the names in a folder that is held last: whoever was told of a change finds it after a power cut. */
export async function syncFolder(folder: FileHandle): Promise<void> {
  const readable = await open(descriptorPath(folder), constants.O_RDONLY | constants.O_DIRECTORY)
  try {
    await readable.sync()
  } finally {
    await readable.close()
  }
}

/** The names in a folder that is held, in no order, as the bytes that they are; read as they are asked for. */
export async function* listNames(folder: FileHandle): AsyncGenerator<Buffer> {
  // latin1 keeps each byte; opendir's own buffers are unknown to its types
  for await (const entry of await opendir(descriptorPath(folder).toString(), { encoding: 'latin1' }))
    yield Buffer.from(entry.name, 'latin1')
}

/** To whom a file belongs, as the host names users, and its permission bits. */
export type Ownership = { readonly uid: number; readonly gid: number; readonly mode: number }

/** Permissions of what the file routes make. */
export const FILE_MODE = 0o644
export const FOLDER_MODE = 0o755

/** Gives what this process made by this very descriptor to its owner. */
export async function setOwnership(held: FileHandle, { uid, gid, mode }: Ownership): Promise<void> {
  const stats = await held.stat()
  if (stats.uid !== uid || stats.gid !== gid) await chown(descriptorPath(held), uid, gid)
  await chmod(descriptorPath(held), mode) // after the owner, whose change takes set-user-id away
}

/**
 * `give` for a folder that this process made under a name and then held. What belongs to somebody else was put in its
 * place by a sandbox meanwhile and is left as it is: no sandbox can make files of this process's user.
 */
export async function setOwnershipIfOurs(held: FileHandle, ownership: Ownership): Promise<void> {
  const stats = await held.stat()
  if (stats.isDirectory() && stats.uid === process.geteuid?.()) await setOwnership(held, ownership)
}

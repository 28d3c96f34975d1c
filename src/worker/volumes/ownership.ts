import { chmod, chown, type FileHandle } from 'node:fs/promises'
import { descriptorPath } from './descriptors.ts'

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

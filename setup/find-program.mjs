import { accessSync, constants } from 'node:fs'
import { delimiter, join } from 'node:path'

/** Folders of system programs that may be missing from a user's PATH. */
const systemFolders = ['/usr/local/sbin', '/usr/sbin', '/sbin']

/** Finds a program on the PATH and in the system's folders. Returns its path, or undefined if there is none. */
export function findProgram(name) {
  const folders = [...(process.env.PATH ?? '').split(delimiter), ...systemFolders]
  return folders.map((folder) => join(folder, name)).find(isExecutable)
}

/** Whether this process may execute the file. */
export function isExecutable(path) {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

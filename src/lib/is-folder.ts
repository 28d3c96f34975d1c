import { stat } from 'node:fs/promises'
import { isMissing } from './is-missing.ts'

/** Whether there is a folder at a path; a symlink is followed. */
export async function isFolder(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isDirectory()
  } catch (error) {
    if (isMissing(error)) return false
    throw error
  }
}

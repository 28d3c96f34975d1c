import { stat } from 'node:fs/promises'
import { isFileNotFound } from './is-missing.ts'

/** Whether there is a folder at a path; a symlink is followed. */
export async function isDirectory(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isDirectory()
  } catch (error) {
    if (isFileNotFound(error)) return false
    throw error
  }
}

import { rename, writeFile } from 'node:fs/promises'
import { readFileOrNull } from '../../processes/process-identity.ts'

/** Writes a file whole: a reader sees the one before or this one. */
export async function writeJsonAtomically(path: string, value: object): Promise<void> {
  await writeFile(`${path}.tmp`, JSON.stringify(value), { mode: 0o600 })
  await rename(`${path}.tmp`, path)
}

/** Null for a file that is not there or was cut short by a crash of the machine. */
export async function readJson<T>(path: string): Promise<T | null> {
  const text = await readFileOrNull(path)
  if (text === null) return null
  try {
    return JSON.parse(text) as T // written by `writeWhole` in a folder for root alone
  } catch (error) {
    if (error instanceof SyntaxError) return null
    throw error
  }
}

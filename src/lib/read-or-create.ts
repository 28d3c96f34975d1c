import { link, open, readFile, rename, rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { hasErrorCode } from './error-code.ts'
import { readFileOrNull, syncPath } from './files.ts'
import type { Random } from './random.ts'

/**
 * Reads a small file that only its owner can read, or creates it with what `make` returns if it is missing or, after a
 * power failure, empty. The name appears together with the whole content, and both are durable. If two processes create
 * it at once, both return the text of the first.
 */
export async function readOrCreateFile(
  path: string,
  random: Pick<Random, 'bytes'>,
  make: () => string,
): Promise<string> {
  const found = await readFileOrNull(path)
  if (found !== null && found !== '') return found
  const fresh = `${path}.${random.bytes(8).toString('hex')}`
  const file = await open(fresh, 'wx', 0o600)
  try {
    await file.writeFile(make())
    await file.sync()
    await publish(fresh, path)
    await syncPath(dirname(path))
  } finally {
    await file.close()
    await rm(fresh, { force: true })
  }
  return await readFile(path, 'utf8')
}

/** Gives a file its name, unless another process has just made one with content. */
async function publish(fresh: string, path: string): Promise<void> {
  try {
    await link(fresh, path)
  } catch (error) {
    if (!hasErrorCode(error, 'EEXIST')) throw error
    if ((await readFileOrNull(path)) === '') await rename(fresh, path)
  }
}

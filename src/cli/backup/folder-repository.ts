import { existsSync, mkdirSync } from 'node:fs'
import { chmod, mkdir, open, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { makeFolders } from '../../lib/files.ts'
import { runCommand } from '../../lib/run-command.ts'
import { DataFolderInUse, lockDataFolder } from '../../store/embedded/data-lock.ts'
import { chunkPath, type Repository, type RepositoryWriter } from './repository.ts'

const SYNC_TIMEOUT_MS = 600_000
const BACKUPS = 'backups'
const CHUNKS = 'chunks'
/** Chunks of a backup that isn't complete. They are moved to the others when all of them are on the disk. */
const INCOMING = 'incoming'

/** Whether a folder is a repository of backups. */
export function isFolderRepository(dir: string): boolean {
  return existsSync(join(dir, BACKUPS)) && existsSync(join(dir, CHUNKS))
}

/** Opens a repository in a folder for reading. */
export function openFolderRepository(dir: string): Repository {
  return {
    list: async () => (await readdir(join(dir, BACKUPS))).filter((name) => name.endsWith('.json')).sort(),
    readManifest: (name) => readFile(join(dir, BACKUPS, name), 'utf8'),
    has: (chunk) => existsSync(join(dir, chunkPath(chunk))),
    readChunk: (chunk) => readFile(join(dir, chunkPath(chunk))),
  }
}

/**
 * Opens a folder to add a backup, and makes it if it is missing. Only its owner can read it. Rejects if the folder has other
 * files, or if another process adds a backup.
 */
export async function openFolderWriter(dir: string): Promise<RepositoryWriter> {
  await makeFolders(dir, { mode: 0o700 })
  const isNew = !isFolderRepository(dir)
  if (isNew && (await readdir(dir)).some((name) => !OWN_ENTRIES.has(name)))
    throw new Error(`${dir} has other files and no backups: choose an empty folder, or a folder with backups`)
  if (isNew) await chmod(dir, 0o700)
  const lock = lockRepository(dir)
  const incoming = join(dir, INCOMING)
  await rm(incoming, { recursive: true, force: true }) // a killed backup left it
  for (const folder of [CHUNKS, BACKUPS, INCOMING]) await mkdir(join(dir, folder), { recursive: true, mode: 0o700 })
  const fresh = new Set<string>()
  return {
    has: (chunk) => fresh.has(chunk) || existsSync(join(dir, chunkPath(chunk))),
    async writeChunk(chunk, compressed) {
      const path = join(incoming, chunk)
      await writeFile(`${path}.part`, compressed, { mode: 0o600 })
      await rename(`${path}.part`, path)
      fresh.add(chunk) // only now: what a failed write leaves must never count as the chunk
    },
    async commit(name, manifest, chunks) {
      await syncFileSystem(dir)
      for (const chunk of fresh) {
        if (!chunks.has(chunk)) continue // it was read before its disk was frozen, and has changed
        const path = join(dir, chunkPath(chunk))
        mkdirSync(join(path, '..'), { recursive: true, mode: 0o700 })
        await rename(join(incoming, chunk), path)
      }
      await syncFileSystem(dir)
      const path = join(dir, BACKUPS, name)
      await writeFile(`${path}.new`, manifest, { mode: 0o600, flush: true })
      await rename(`${path}.new`, path)
      const folder = await open(join(dir, BACKUPS))
      await folder.sync()
      await folder.close()
    },
    async [Symbol.asyncDispose]() {
      await rm(incoming, { recursive: true, force: true })
      lock[Symbol.dispose]()
    },
  }
}

const OWN_ENTRIES: ReadonlySet<string> = new Set([BACKUPS, CHUNKS, INCOMING, 'lock', 'lock.pid', 'lost+found'])

function lockRepository(dir: string): Disposable {
  try {
    return lockDataFolder(dir)
  } catch (cause) {
    if (!(cause instanceof DataFolderInUse)) throw cause
    throw new Error(`another process adds a backup to ${dir}`, { cause })
  }
}

/** Writes everything of a file system to its disk: one call for thousands of chunks. */
async function syncFileSystem(dir: string): Promise<void> {
  await runCommand('sync', ['-f', dir], { timeoutMs: SYNC_TIMEOUT_MS })
}

import { existsSync, statSync } from 'node:fs'
import { hasErrorCode } from '../../lib/error-code.ts'
import { isFolderRepository, openFolderRepository, openFolderWriter } from './folder-repository.ts'
import { isLaterByName, parseManifest, type Manifest } from './manifest.ts'
import { TargetError, type Repository, type RepositoryWriter } from './repository.ts'
import { openTarRepository, openTarWriter } from './tar-repository.ts'

/**
 * Opens the target of a backup: a tar file if its name ends with `.tar`, else a folder. Writes reject with `TargetError`, which names the
 * target.
 */
export async function openWriter(target: string): Promise<RepositoryWriter> {
  const writer = await (target.endsWith('.tar') ? openTarWriter(target) : openFolderWriter(target)).catch(
    (error: unknown) => {
      throw hasErrorCode(error, 'ENOSPC') ? targetError(target, error) : describeOpenError(target, error)
    },
  )
  const explain = (error: unknown): never => {
    throw targetError(target, error)
  }
  return {
    ...writer,
    writeChunk: (chunk, compressed) => writer.writeChunk(chunk, compressed).catch(explain),
    commit: (name, manifest, chunks) => writer.commit(name, manifest, chunks).catch(explain),
    [Symbol.asyncDispose]: () => writer[Symbol.asyncDispose](),
  }
}

/** Replaces the operating system's error about a target that can't be made. Nothing was written yet. */
function describeOpenError(target: string, error: unknown): unknown {
  if (!hasErrorCode(error, 'EEXIST', 'ENOTDIR', 'ENOENT', 'EACCES', 'EROFS')) return error
  const rule = 'name a folder, or a new file in an existing folder, whose name ends with .tar'
  return new Error(`${target} can't be made or written: ${rule}`, { cause: error })
}

function targetError(target: string, cause: unknown): TargetError {
  const why = hasErrorCode(cause, 'ENOSPC')
    ? `the file system with ${target} is full: enlarge it, delete other files on it, or name another target`
    : `${target} can't be written: ${cause instanceof Error ? cause.message : String(cause)}`
  return new TargetError(`${why}; earlier backups are complete, and the next backup deletes the parts of this one`, {
    cause,
  })
}

/** Opens a file or folder with backups. */
export async function openRepository(path: string): Promise<Repository & Partial<AsyncDisposable>> {
  if (!existsSync(path)) throw new Error(`${path} does not exist`)
  if (statSync(path).isFile()) return openTarRepository(path)
  if (!isFolderRepository(path)) throw new Error(`${path} has no backups`)
  return openFolderRepository(path)
}

/**
 * Reads the newest backup that is not younger than `at`. Null: the newest of all. Rejects if that one is damaged. Later backups aren't
 * read, so they may be damaged, or have the format of a later release.
 */
export async function chooseBackup(
  repository: Repository,
  at: Date | null,
): Promise<{ readonly name: string; readonly manifest: Manifest }> {
  for (const name of (await repository.list()).toReversed()) {
    if (at !== null && isLaterByName(name, at)) continue
    const manifest = parseManifest(name, await repository.readManifest(name))
    if (at === null || new Date(manifest.taken_at) <= at) return { name, manifest }
  }
  throw new Error(at === null ? 'there is no complete backup' : `there is no backup of ${at.toISOString()} or before`)
}

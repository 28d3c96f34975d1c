import { existsSync, statSync } from 'node:fs'
import { isFolderRepository, openFolderRepository, openFolderWriter } from './folder-repository.ts'
import { parseManifest, type Manifest } from './manifest.ts'
import type { Repository, RepositoryWriter } from './repository.ts'
import { openTarRepository, openTarWriter } from './tar-repository.ts'

/** Opens the target of a backup: a tar file if its name ends with `.tar`, else a folder. */
export function openWriter(target: string): Promise<RepositoryWriter> {
  return target.endsWith('.tar') ? openTarWriter(target) : openFolderWriter(target)
}

/** Opens a file or folder with backups. */
export async function openRepository(path: string): Promise<Repository & Partial<AsyncDisposable>> {
  if (!existsSync(path)) throw new Error(`${path} does not exist`)
  if (statSync(path).isFile()) return openTarRepository(path)
  if (!isFolderRepository(path)) throw new Error(`${path} has no backups`)
  return openFolderRepository(path)
}

/** Reads the newest backup that is not younger than `at`. Null: the newest of all. */
export async function chooseBackup(
  repository: Repository,
  at: Date | null,
): Promise<{ readonly name: string; readonly manifest: Manifest }> {
  for (const name of (await repository.list()).toReversed()) {
    const manifest = parseManifest(name, await repository.readManifest(name))
    if (at === null || new Date(manifest.taken_at) <= at) return { name, manifest }
  }
  throw new Error(at === null ? 'there is no complete backup' : `there is no backup of ${at.toISOString()} or before`)
}

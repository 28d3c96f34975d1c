import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { readArchive, UnreadableFiles, type ArchiveSource } from './archives.ts'
import type { ArchiveKind, Stored, StoredArchive } from './manifest.ts'

/** Stores archives, and reports what can't be read as failures. */
export type ArchiveTaker = {
  /** Stores all files that can be read. Each other one is a failure. */
  takeReadable(
    kind: ArchiveKind,
    name: string,
    source: ArchiveSource & { readonly isChanging: boolean },
  ): Promise<StoredArchive>
  /**
   * Stores files that are of use only together, which may be deleted meanwhile, but don't change. Null: they were deleted, or one of
   * them can't be read, which is a failure.
   */
  takeWhole(kind: ArchiveKind, name: string, source: ArchiveSource): Promise<StoredArchive | null>
}

/** Makes a taker. `store` stores a stream, and `onFailure` gets what could not be taken, for people. */
export function makeArchiveTaker(deps: {
  readonly store: (stream: AsyncIterable<Uint8Array>) => Promise<Stored>
  readonly onFailure: (text: string) => void
  readonly onProgress: (text: string) => void
}): ArchiveTaker {
  return {
    async takeReadable(kind, name, source) {
      deps.onProgress(`${kind} ${name}`)
      const { isChanging } = source
      const onFlaw = (flaw: string): void => {
        deps.onFailure(`${kind} ${name}: ${flaw}`)
      }
      return { kind, name, note: null, ...(await deps.store(readArchive(source, { isChanging, onFlaw }))) }
    },
    async takeWhole(kind, name, source) {
      deps.onProgress(`${kind} ${name}`)
      // A file that changes gets no other contents, but another number of links. What is deleted loses its name first.
      const isKept = (): boolean => source.paths.every((path) => existsSync(join(source.dir, path)))
      try {
        const stored = await deps.store(readArchive(source, { isChanging: true }))
        return isKept() ? { kind, name, note: null, ...stored } : null
      } catch (error) {
        if (!(error instanceof UnreadableFiles)) throw error
        if (isKept()) deps.onFailure(`${kind} ${name}: ${error.message}`)
        return null
      }
    },
  }
}

import { parseManifest, streamsOf } from './manifest.ts'
import { readVerified, type Repository } from './repository.ts'

/** The result of reading all of a repository. */
export type Verified = {
  readonly backups: number
  readonly chunks: number
  /** What is damaged or missing, and what it belongs to. */
  readonly flaws: readonly string[]
}

/** Reads every chunk of every backup once, and checks hashes. */
export async function verifyRepository(repository: Repository, onProgress: (text: string) => void): Promise<Verified> {
  const flaws: string[] = []
  const checked = new Map<string, string | null>()
  const check = async (chunk: string): Promise<string | null> => {
    try {
      await readVerified(repository, chunk)
      return null
    } catch (error) {
      return error instanceof Error ? error.message : String(error)
    }
  }
  const names = await repository.list()
  for (const name of names) {
    let manifest
    try {
      manifest = parseManifest(name, await repository.readManifest(name))
    } catch (error) {
      flaws.push(error instanceof Error ? error.message : String(error))
      continue
    }
    for (const { label, chunks } of streamsOf(manifest)) {
      onProgress(`${name}: ${label}`)
      for (const chunk of chunks) {
        if (!checked.has(chunk)) checked.set(chunk, await check(chunk))
        const flaw = checked.get(chunk) ?? null
        if (flaw !== null) flaws.push(`${name}: ${label}: ${flaw}`)
      }
    }
  }
  if (names.length === 0) flaws.push('there is no complete backup')
  return { backups: names.length, chunks: checked.size, flaws }
}

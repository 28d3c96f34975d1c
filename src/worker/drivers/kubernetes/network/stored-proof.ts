// What the last canary saw, in two files of the driver's folder, of which at most one is there. A canary that can't be completed changes nothing.
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { readFileOrNull } from '../../../../lib/files.ts'
import type { CanaryVerdict } from './canary.ts'

/** The last verdict about a cluster. `at` is an instant in ISO format. */
export type StoredProof =
  | { readonly kind: 'enforced'; readonly at: string }
  | { readonly kind: 'open'; readonly at: string; readonly seen: string }

/** The time of the proof. */
const ENFORCED = 'network-policies-enforced'
/** The time of the failure, and in the second line what was seen. */
const OPEN = 'network-policies-not-enforced'
const PRIVATE = { mode: 0o600 }

/** Stores what a canary saw. */
export async function storeProof(dir: string, verdict: CanaryVerdict, now: Date): Promise<void> {
  if (verdict.kind === 'unknown') return
  const [enforced, open] = [join(dir, ENFORCED), join(dir, OPEN)]
  if (verdict.kind === 'enforced') {
    await rm(open, { force: true })
    await writeFile(enforced, now.toISOString(), PRIVATE)
    return
  }
  await rm(enforced, { force: true })
  await writeFile(open, `${now.toISOString()}\n${verdict.seen}`, PRIVATE)
}

/** Reads the last verdict. Null if there is none. */
export async function readStoredProof(dir: string): Promise<StoredProof | null> {
  const at = await readFileOrNull(join(dir, ENFORCED))
  if (at !== null) return { kind: 'enforced', at }
  const failure = await readFileOrNull(join(dir, OPEN))
  if (failure === null) return null
  const [failedAt = '', ...seen] = failure.split('\n')
  return { kind: 'open', at: failedAt, seen: seen.join('\n') }
}

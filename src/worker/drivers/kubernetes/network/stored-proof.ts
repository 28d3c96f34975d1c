// What the last canary saw, in two files of the driver's folder, of which at most one is there. A canary that can't be completed changes nothing.
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { readFileOrNull } from '../../../../lib/files.ts'
import type { CanaryVerdict } from './canary.ts'
import type { NetworkMode } from '../network-mode.ts'

/** The last verdict about a cluster. `at` is an instant in ISO format. */
export type StoredProof =
  | { readonly kind: 'enforced'; readonly at: string }
  | { readonly kind: 'open'; readonly at: string; readonly seen: string }

/** The ways to enforce networks that are proved. */
export type ProvedMode = Exclude<NetworkMode, 'cluster'>
/** The driver's folder, and what was proved. */
type ProofPlace = { readonly dir: string; readonly network: ProvedMode }

const PREFIXES: Readonly<Record<ProvedMode, string>> = { prove: 'network-policies', rules: 'network-rules' }
const PRIVATE = { mode: 0o600 }

/** The file with the time of the proof, and the one with the time of the failure and in the second line what was seen. */
function filesOf({ dir, network }: ProofPlace): { readonly enforced: string; readonly open: string } {
  const at = (end: string): string => join(dir, `${PREFIXES[network]}-${end}`)
  return { enforced: at('enforced'), open: at('not-enforced') }
}

/** Stores what a canary saw. */
export async function storeProof(place: ProofPlace, verdict: CanaryVerdict, now: Date): Promise<void> {
  if (verdict.kind === 'unknown') return
  const { enforced, open } = filesOf(place)
  if (verdict.kind === 'enforced') {
    await rm(open, { force: true })
    await writeFile(enforced, now.toISOString(), PRIVATE)
    return
  }
  await rm(enforced, { force: true })
  await writeFile(open, `${now.toISOString()}\n${verdict.seen}`, PRIVATE)
}

/** Reads the last verdict. Null if there is none. */
export async function readStoredProof(place: ProofPlace): Promise<StoredProof | null> {
  const { enforced, open } = filesOf(place)
  const at = await readFileOrNull(enforced)
  if (at !== null) return { kind: 'enforced', at }
  const failure = await readFileOrNull(open)
  if (failure === null) return null
  const [failedAt = '', ...seen] = failure.split('\n')
  return { kind: 'open', at: failedAt, seen: seen.join('\n') }
}

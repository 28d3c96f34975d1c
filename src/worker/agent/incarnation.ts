import { makeUuids, uuidTimeMs } from '../../lib/uuid.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Random } from '../../lib/random.ts'
import { readJson, writeJsonAtomically } from '../../lib/files.ts'

type IncarnationDeps = { readonly clock: Clock; readonly random: Random }

/**
 * Begins a life of the worker that keeps this file: a UUIDv7 that is greater than those of its earlier lives, wherever the
 * clock of the machine stands. By it the control plane knows what an earlier life sent and arrived late.
 */
export async function beginIncarnation(deps: IncarnationDeps, path: string): Promise<string> {
  const found = await readJson<{ readonly life: string }>(path)
  const life = nextIncarnation(deps, found?.life ?? null)
  await writeJsonAtomically(path, { life })
  return life
}

/** The UUID of a life that comes after `earlier`. */
export function nextIncarnation({ clock, random }: IncarnationDeps, earlier: string | null): string {
  return makeUuids(clock, random, earlier === null ? 0 : uuidTimeMs(earlier) + 1).next()
}

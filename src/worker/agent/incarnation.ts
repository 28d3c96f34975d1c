import { makeUuids, uuidTimeMs } from '../../lib/uuid.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Random } from '../../lib/random.ts'
import { readJson, writeJsonAtomically } from '../../lib/files.ts'

type IncarnationDeps = { readonly clock: Clock; readonly random: Random }

/**
 * Begins an incarnation of the worker that owns this file, and returns its UUIDv7. It is greater than those of earlier
 * incarnations, even if the clock went back, so that the control plane recognizes what an earlier one sent and arrives late.
 * The file keeps the field `life` of the first release.
 */
export async function beginIncarnation(deps: IncarnationDeps, path: string): Promise<string> {
  const found = await readJson<{ readonly life: string }>(path)
  const incarnation = nextIncarnation(deps, found?.life ?? null)
  await writeJsonAtomically(path, { life: incarnation })
  return incarnation
}

/** The UUID of an incarnation that comes after `earlier`. */
export function nextIncarnation({ clock, random }: IncarnationDeps, earlier: string | null): string {
  return makeUuids(clock, random, earlier === null ? 0 : uuidTimeMs(earlier) + 1).next()
}

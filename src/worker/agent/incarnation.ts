import { makeUuids, uuidTimeMs } from '../../lib/uuid.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Random } from '../../lib/random.ts'
import { readJson, writeJsonAtomically } from '../../lib/files.ts'

type IncarnationDeps = { readonly clock: Clock; readonly random: Random }

/**
 * Creates the UUIDv7 of a new process of a worker (an incarnation), stores it in the file at `path`, and returns it.
 * The UUID is greater than those of all earlier incarnations, even if the clock went back. The control plane therefore
 * recognizes late messages of an earlier process. The file's field is named `life`, as in the first release.
 */
export async function beginIncarnation(deps: IncarnationDeps, path: string): Promise<string> {
  const found = await readJson<{ readonly life: string }>(path)
  const incarnation = nextIncarnation(deps, found?.life ?? null)
  await writeJsonAtomically(path, { life: incarnation })
  return incarnation
}

/** Returns a UUID that is greater than `earlier`. */
export function nextIncarnation({ clock, random }: IncarnationDeps, earlier: string | null): string {
  return makeUuids(clock, random, earlier === null ? 0 : uuidTimeMs(earlier) + 1).next()
}

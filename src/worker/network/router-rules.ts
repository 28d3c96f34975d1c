import { makeBatch } from '../../lib/batch.ts'
import { CommandError } from '../../lib/run-command.ts'
import type { NetworkNames } from './network-names.ts'
import { nft } from './network-commands.ts'

/** Changes of the router's packet filter. */
export type RouterRules = {
  /** Puts the lines in force, all of them or none; rejects when they were refused. Where two change the same, the first comes first. */
  apply(lines: readonly string[]): Promise<void>
}

/** What is read by one process at most, with room for the pipe that it comes through. */
const NFT_INPUT_LIMIT_BYTES = 40_000

type Lines = readonly string[]
/** Null: it is in force. */
type Refusal = { readonly error: unknown } | null

/** The most changes of a batch, which is put in force in parts where it is too long. */
const BATCH_MAX = 1_000

/**
 * Changes that come while others are put in force go together after them: of the 7 ms of processor that a change takes, its own
 * part is small, and what nft asks of the kernel first grows with the number of sandboxes (2026-11).
 */
export function makeRouterRules(names: NetworkNames): RouterRules {
  const change = makeBatch<Lines, Refusal>({
    run: async (changes) => {
      const refusals: Refusal[] = []
      for (const part of partsOf(changes)) refusals.push(...(await applyBatch(names, part)))
      return refusals
    },
    groupOf: () => 'all',
    maxItems: BATCH_MAX,
    maxInFlight: 1,
  })
  return {
    async apply(lines) {
      const refusal = await change(lines)
      if (refusal !== null) throw refusal.error
    },
  }
}

/** In their order, each part as long as one process may read. */
function partsOf(changes: readonly Lines[]): readonly (readonly Lines[])[] {
  const parts: Lines[][] = []
  let bytes = Infinity
  for (const lines of changes) {
    const own = lines.reduce((sum, line) => sum + Buffer.byteLength(line) + 1, 0)
    bytes += own
    if (bytes <= NFT_INPUT_LIMIT_BYTES) parts.at(-1)?.push(lines)
    else {
      parts.push([lines])
      bytes = own
    }
  }
  return parts
}

/** Never rejects: of each change it is told whether it was refused. */
async function applyBatch(names: NetworkNames, changes: readonly Lines[]): Promise<readonly Refusal[]> {
  try {
    await nft(names.commands, changes.flat(), names.routerNamespace)
    return changes.map(() => null)
  } catch (error) {
    const isShared = changes.length > 1 && error instanceof CommandError
    if (!isShared) return changes.map(() => ({ error }))
    // One that is refused must not take the others with it.
    const refusals: Refusal[] = []
    for (const lines of changes) refusals.push(...(await applyBatch(names, [lines])))
    return refusals
  }
}

import { makeBatch } from '../../lib/batch.ts'
import { CommandError } from '../../lib/run-command.ts'
import type { NetworkNames } from './network-names.ts'
import { nft } from './network-commands.ts'

/** Changes the router's packet filter. */
export type RouterRules = {
  /** Applies the lines in one transaction. Rejects when they are refused. Changes apply in the order of the calls. */
  apply(lines: readonly string[]): Promise<void>
}

/** The most that one nft process reads, below the size of a pipe. */
const NFT_INPUT_LIMIT_BYTES = 40_000

type Lines = readonly string[]
/** The error of a refused change; null when it was applied. */
type Refusal = { readonly error: unknown } | null

/** The most changes in a batch. A batch that is too long for one process is applied in parts. */
const BATCH_MAX = 1_000

/**
 * Makes the rules of a router. Changes that arrive while others are being applied are batched. Of the 7 ms of processor
 * that a change takes, its own part is small; what nft first reads from the kernel grows with the number of sandboxes
 * (2026-11).
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

/** Splits changes in order, so one process can read each part. */
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

/** Applies changes and returns for each whether it was refused. Never rejects. */
async function applyBatch(names: NetworkNames, changes: readonly Lines[]): Promise<readonly Refusal[]> {
  try {
    await nft(names.commands, changes.flat(), names.routerNamespace)
    return changes.map(() => null)
  } catch (error) {
    const isShared = changes.length > 1 && error instanceof CommandError
    if (!isShared) return changes.map(() => ({ error }))
    // A refused change must not fail the others.
    const refusals: Refusal[] = []
    for (const lines of changes) refusals.push(...(await applyBatch(names, [lines])))
    return refusals
  }
}

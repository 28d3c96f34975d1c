import { makeBatch } from '../../../lib/turns/batch.ts'
import { CommandError } from '../../../lib/run-command.ts'
import type { NetworkNames } from '../network-names.ts'
import { nft } from '../network-commands.ts'

/** Changes the router's packet filter. */
export type RouterRules = {
  /**
   * Applies the lines in one transaction. Rejects when nft refuses the lines. Changes are applied in the order of the
   * calls.
   */
  apply(lines: readonly string[]): Promise<void>
}

/** The maximum size of the input for one nft process. It is below the size of a pipe. */
const NFT_INPUT_LIMIT_BYTES = 40_000

type Lines = readonly string[]
/** The error of a refused change; null when it was applied. */
type Refusal = { readonly error: unknown } | null

/** The maximum number of changes in a batch. A batch that is too long for one nft process is applied in parts. */
const BATCH_MAX = 1_000

/**
 * Creates the object that changes a router's rules. Changes that arrive while others are being applied are batched.
 * Batching saves processor time. One call of nft takes 7 ms (2026-11), mostly to read the current rules from the
 * kernel, and longer with more sandboxes.
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

/** Splits changes into parts, in order, each small enough for one nft process. */
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

/** Applies changes. Returns for each change whether it was refused. Never rejects. */
async function applyBatch(names: NetworkNames, changes: readonly Lines[]): Promise<readonly Refusal[]> {
  try {
    await nft(names.commands, changes.flat(), names.routerNamespace)
    return changes.map(() => null)
  } catch (error) {
    const isShared = changes.length > 1 && error instanceof CommandError
    if (!isShared) return changes.map(() => ({ error }))
    // nft refused the whole batch. Each change is applied on its own, so that a refused change doesn't fail the others.
    const refusals: Refusal[] = []
    for (const lines of changes) refusals.push(...(await applyBatch(names, [lines])))
    return refusals
  }
}

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
  /**
   * Applies what a sandbox causes by itself, such as by its look-ups. Changes of others wait for one input of nft of them at most: 32 answers
   * with many addresses take nft more than two seconds. Rejects if the change is no longer current when its turn comes.
   */
  applyFor(sandbox: string, change: SandboxChange): Promise<void>
}

/** A change that a sandbox causes. `isCurrent` tells whether its rules still are those for which the lines were made. */
export type SandboxChange = { readonly lines: readonly string[]; readonly isCurrent: () => boolean }

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
      for (const part of partsOf(changes, (lines) => lines)) refusals.push(...(await applyBatch(names, part)))
      return refusals
    },
    groupOf: () => 'all',
    maxItems: BATCH_MAX,
    maxInFlight: 1,
  })
  const changeFor = makeBatch<SandboxChange & { readonly sandbox: string }, Refusal>({
    run: async (changes) => {
      const refusals: Refusal[] = []
      for (const part of partsOf(changes, ({ lines }) => lines))
        refusals.push(...(await Promise.all(part.map(applyCurrent))))
      return refusals
    },
    groupOf: ({ sandbox }) => sandbox,
    maxItems: BATCH_MAX,
    maxInFlight: 1,
  })
  function applyCurrent({ lines, isCurrent }: SandboxChange): Promise<Refusal> {
    return isCurrent() ? change(lines) : Promise.resolve({ error: new Error('the sandbox has other rules now') })
  }
  return {
    apply: async (lines) => {
      throwRefusal(await change(lines))
    },
    applyFor: async (sandbox, change) => {
      throwRefusal(await changeFor({ ...change, sandbox }))
    },
  }
}

function throwRefusal(refusal: Refusal): void {
  if (refusal !== null) throw refusal.error
}

/** Splits changes into parts, in order, each small enough for one nft process. */
function partsOf<Change>(
  changes: readonly Change[],
  linesOf: (change: Change) => Lines,
): readonly (readonly Change[])[] {
  const parts: Change[][] = []
  let bytes = Infinity
  for (const change of changes) {
    const own = linesOf(change).reduce((sum, line) => sum + Buffer.byteLength(line) + 1, 0)
    bytes += own
    if (bytes <= NFT_INPUT_LIMIT_BYTES) parts.at(-1)?.push(change)
    else {
      parts.push([change])
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

import { StartError } from '../start-error.ts'
import type { DiskReserve } from '../disk-reserve.ts'
import type { LayerSizes } from './layers/layer-sizes.ts'

/** The space of an image store: what its layers take, and what pulls or loads in progress have written so far. */
export type StoreSpace = {
  /** Begins to count a layer that is being written. */
  claim(): SpaceClaim
  /** Evicts images until the store is within its limit, or until nothing more can go. */
  trim(): Promise<void>
}

/** The space of one layer that is being written. */
export type SpaceClaim = {
  bytes(): number
  add(bytes: number): void
  /**
   * Evicts images if the store or the disk is full. Rejects with `StartError('disk')` if that isn't enough.
   */
  require(): Promise<void>
  /** Like `require`, at the first call and whenever `STEP_BYTES` were added since the last check. */
  check(): Promise<void>
  /** Ends the claim: the layer is stored, or deleted. */
  release(): void
}

type StoreSpaceInput = {
  /** The limit of the store. */
  readonly limitBytes: number
  readonly sizes: Pick<LayerSizes, 'total'>
  readonly reserve: DiskReserve
  /** Deletes images until `isShort` resolves with false. */
  readonly evict: (isShort: () => Promise<boolean>) => Promise<void>
  /** What did not happen, and why nothing more can go: parts of the refusals. */
  readonly words: { readonly undone: string; readonly kept: string }
}

/** How much may be written between two checks. The store may exceed its limit by this much for each layer in progress. */
const STEP_BYTES = 8 * 1024 * 1024
const GIB = 1024 ** 3

/** Makes the space of a store. */
export function makeStoreSpace({ limitBytes, sizes, reserve, evict, words }: StoreSpaceInput): StoreSpace {
  let claimedBytes = 0
  let making: Promise<void> | null = null

  const isOverLimit = async (): Promise<boolean> => claimedBytes + (await sizes.total()) > limitBytes
  const isShort = async (): Promise<boolean> => (await isOverLimit()) || (await reserve.isShort())

  // All pulls wait for the same eviction.
  async function makeRoom(): Promise<void> {
    if (!(await isShort())) return
    making ??= evict(isShort).finally(() => {
      making = null
    })
    await making
  }

  async function require(): Promise<void> {
    await makeRoom()
    await reserve.require(words.undone)
    if (!(await isOverLimit())) return
    throw new StartError(
      'disk',
      `the image store of this worker is full: it holds at most ${(limitBytes / GIB).toFixed(1)} GiB (SANDYARD_IMAGE_STORE_GIB), and ${words.kept}`,
    )
  }

  return {
    trim: makeRoom,
    claim() {
      let bytes = 0
      let uncheckedBytes = STEP_BYTES
      return {
        bytes: () => bytes,
        add(added) {
          bytes += added
          claimedBytes += added
          uncheckedBytes += added
        },
        require,
        async check() {
          if (uncheckedBytes < STEP_BYTES) return
          uncheckedBytes = 0
          await require()
        },
        release() {
          claimedBytes -= bytes
          bytes = 0
        },
      }
    },
  }
}

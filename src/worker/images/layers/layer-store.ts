import { mkdir, readdir, rename, stat } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { isDirectory } from '../../../lib/files.ts'
import type { Clock } from '../../../lib/clock.ts'
import { runCommand } from '../../../lib/run-command.ts'
import { StartError } from '../../start-error.ts'
import type { ImageLimits } from '../image.ts'
import type { ImageBudget, LayerBudget } from '../image-budget.ts'
import { syncPath } from '../../../lib/files.ts'
import { openLayerProofs, type LayerHolder } from './layer-proofs.ts'
import { layerName } from './layer-name.ts'
import type { LayerSizes } from './layer-sizes.ts'
import type { SpaceClaim, StoreSpace } from '../store-space.ts'
import { withRetries } from '../registry/registry-transport.ts'
import { makeSemaphore } from '../../../lib/turns/semaphore.ts'
import { makeSingleFlight } from '../../../lib/turns/single-flight.ts'
import type { TempFolders } from '../temp-folders.ts'
import { unpackLayer, type OpenBlob, type UnpackMeter } from './unpack.ts'

/**
 * The unpacked layers, which all images share. Each layer has a folder named after its diff_id. Invariants: a folder
 * with such a name is complete and synced, because a single rename gives it this name after all checks; and nobody gets
 * a layer by naming its diff_id, but only after a verified download (`layer-proofs.ts`).
 */
export interface LayerStore {
  pathOf(diffId: string): string
  /** Whether a layer is pinned, or was used so recently that a process may be about to mount it. */
  isBusy(path: string): boolean
  /**
   * Makes sure that the store has a layer and that the caller may use it. If either is not so, calls `open` to download
   * and unpack it. Callers who may share a download and need the same layer at the same time do so. Resolves with
   * whether the layer was missing.
   */
  ensure(diffId: string, open: OpenBlob, options: UnpackOptions & LayerUse): Promise<boolean>
  /** Whether a holder may use all these layers without downloading them. */
  areProven(diffIds: readonly string[], holder: LayerHolder): boolean
  /** Marks layers as in use now. `collectGarbage` keeps them for `GC_GRACE_MS`. */
  markUsed(diffIds: readonly string[]): void
  /** Protects layers from deletion until one of the returned functions is called, even if a pull takes long. */
  pin(diffIds: readonly string[]): LayerPin
  /**
   * Deletes layers whose folder is not in `keep` and that are neither pinned nor recently used. Returns the number of
   * deleted layers.
   */
  collectGarbage(keep: ReadonlySet<string>): Promise<number>
  /**
   * Deletes those of the given layers whose folder is not in `keep` and that are not busy. For the
   * layers of a failed pull or of an evicted image.
   */
  discard(diffIds: readonly string[], keep: ReadonlySet<string>): Promise<void>
}

type UnpackOptions = {
  /** The budget of the caller's image, which counts the layer if this caller unpacks it. */
  readonly budget: ImageBudget
  readonly signal: AbortSignal
}

/** Who wants a layer, and whom its download proves it to. */
export type LayerUse = {
  readonly caller: LayerHolder
  /** Whom any download of this caller proves the layer to. Only callers with the same value share a download. */
  readonly sharesWith: LayerHolder
  /** Whom the download proved the layer to: `sharesWith`, or everyone. Called after the download. */
  readonly provedTo: () => LayerHolder
}

/** The use of an image that the operator loads, which is for everyone. */
export const FOR_EVERYONE: LayerUse = { caller: 'everyone', sharesWith: 'everyone', provedTo: () => 'everyone' }

type LayerPin = {
  /** Ends the protection and marks the layers as used. */
  release(): void
  /** Ends the protection only. */
  abandon(): void
}

type LayerStoreDeps = {
  readonly dir: string
  /** The folder that records whom each layer was proved to. */
  readonly proofsDir: string
  readonly uidShift: number
  readonly temp: TempFolders
  readonly limits: ImageLimits
  readonly sizes: LayerSizes
  readonly space: Pick<StoreSpace, 'claim'>
  readonly clock: Clock
}

/** How long a layer is kept after it was unpacked or used, because a process may be about to mount it. */
export const GC_GRACE_MS = 10 * 60_000

/** The same for a layer of a failed pull or an evicted image. A start mounts its layers seconds after it got its image. */
const BUSY_MS = 2 * 60_000

/** How many bytes a file, folder or link counts as, beside its content: a block of the file system. */
const FILE_BYTES = 4096

/** How many layers to download and unpack at a time. Each uses about half a core. */
const CONCURRENT_LAYERS = 3
const SYNC_TIMEOUT_MS = 120_000

/** Opens the folder of layers. Creates the folder when it is missing. */
export async function openLayerStore(deps: LayerStoreDeps): Promise<LayerStore> {
  const { dir, uidShift, temp, limits, sizes, space, clock } = deps
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const proofs = await openLayerProofs(deps.proofsDir)
  const flights = makeSingleFlight<void>()
  const semaphore = makeSemaphore(CONCURRENT_LAYERS)
  const lastUsedMs = new Map<string, number>()
  const pins = new Map<symbol, readonly string[]>()

  // The name has 128 bits of the digest, which is enough against collisions. It must be short, because the options of
  // an overlay mount list all folders and must fit into one page of 4096 bytes.
  const pathOf = (diffId: string): string => join(dir, layerName(diffId))

  function markUsed(diffIds: readonly string[]): void {
    for (const diffId of diffIds) lastUsedMs.set(layerName(diffId), clock.monotonicMs())
  }

  function isHeld(name: string): boolean {
    return [...pins.values()].some((diffIds) => diffIds.some((diffId) => layerName(diffId) === name))
  }

  function wasUsedWithin(name: string, ms: number): boolean {
    const usedMs = lastUsedMs.get(name)
    return usedMs !== undefined && clock.monotonicMs() - usedMs < ms
  }

  function isBusy(path: string): boolean {
    return isHeld(basename(path)) || wasUsedWithin(basename(path), BUSY_MS)
  }

  async function remove(name: string): Promise<void> {
    await Promise.all([proofs.forget(name), sizes.forget(name)])
    const trashFolder = await temp.create()
    // Renames the layer before it is deleted. An interrupted deletion would otherwise leave an incomplete layer
    // under the layer's name.
    await rename(join(dir, name), join(trashFolder, name))
    lastUsedMs.delete(name)
    await temp.remove(trashFolder)
  }

  // Unpacks a layer even if the store has it, so that neither refusals nor their time tell whether it does.
  async function unpack(diffId: string, open: OpenBlob, { budget, signal }: UnpackOptions): Promise<void> {
    const claim = space.claim()
    const into = await temp.create()
    try {
      const own = meter(budget.beginLayer(diffId), claim)
      const found = await unpackLayer(open, { into, uidShift, limits, budget: own, signal })
      if (found !== diffId)
        throw new StartError('image', `a layer has the digest ${found}, but the image's configuration says ${diffId}`)
      await claim.require()
      await runCommand('sync', ['--file-system', into], { timeoutMs: SYNC_TIMEOUT_MS })
      let isNew = true
      await rename(into, pathOf(diffId)).catch(async (error: unknown) => {
        if (!(await isDirectory(pathOf(diffId)))) throw error
        isNew = false // the store has it already
        await temp.remove(into)
      })
      await sizes.set(layerName(diffId), claim.bytes())
      await syncPath(dir)
      if (signal.aborted && isNew) await remove(layerName(diffId)) // its image was refused meanwhile
      signal.throwIfAborted()
    } catch (error) {
      await temp.remove(into)
      throw error
    } finally {
      claim.release()
    }
  }

  const areProven: LayerStore['areProven'] = (diffIds, holder) =>
    diffIds.every((diffId) => proofs.isProven(layerName(diffId), holder))

  return {
    pathOf,
    markUsed,
    areProven,
    isBusy,
    pin(diffIds) {
      const hold = Symbol('hold')
      pins.set(hold, diffIds)
      return {
        release() {
          markUsed(diffIds)
          pins.delete(hold)
        },
        abandon() {
          pins.delete(hold)
        },
      }
    },
    async ensure(diffId, open, { budget, signal, caller, sharesWith, provedTo }) {
      const wasMissing = !(await isDirectory(pathOf(diffId)))
      // If a shared download fails, the cause may be the registry of the caller that started it. This caller therefore
      // tries its own registry.
      while (!areProven([diffId], caller) || !(await isDirectory(pathOf(diffId)))) {
        const flight = flights.join(
          `${diffId} ${sharesWith}`,
          async (shared) => {
            await semaphore.run(() =>
              withRetries(clock, shared, () => unpack(diffId, open, { budget, signal: shared })),
            )
            await proofs.record(layerName(diffId), provedTo())
          },
          signal,
        )
        try {
          await flight.result
        } catch (error) {
          if (flight.isLeader || signal.aborted) throw error
        }
      }
      return wasMissing
    },
    async collectGarbage(keep) {
      const kept = new Set([...keep].map((path) => basename(path)))
      let deleted = 0
      for (const name of await readdir(dir)) {
        if (kept.has(name) || isHeld(name) || wasUsedWithin(name, GC_GRACE_MS)) continue
        const { ctimeMs } = await stat(join(dir, name))
        if (clock.now().getTime() - ctimeMs < GC_GRACE_MS) continue
        await remove(name)
        deleted += 1
      }
      return deleted
    },
    async discard(diffIds, keep) {
      for (const path of new Set(diffIds.map(pathOf))) {
        if (!keep.has(path) && !isBusy(path) && (await isDirectory(path))) await remove(basename(path))
      }
    },
  }
}

/** Counts a layer against the budget of its image and against the space of the store. */
function meter(budget: LayerBudget, claim: SpaceClaim): UnpackMeter {
  return {
    addBytes(count) {
      budget.addBytes(count)
      claim.add(count)
    },
    addFiles(count) {
      budget.addFiles(count)
      claim.add(count * FILE_BYTES)
    },
    check: () => claim.check(),
  }
}

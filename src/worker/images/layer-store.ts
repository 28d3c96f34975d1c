import { mkdir, readdir, rename, stat } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { isDirectory } from '../../lib/files.ts'
import type { Clock } from '../../lib/clock.ts'
import { runCommand } from '../../lib/run-command.ts'
import { StartError } from '../start-error.ts'
import type { ImageLimits } from './image.ts'
import { syncFolder } from './image-records.ts'
import { withRetries } from './registry-transport.ts'
import { makeSemaphore } from '../../lib/semaphore.ts'
import { makeSingleFlight } from '../../lib/single-flight.ts'
import type { TempFolders } from './temp-folders.ts'
import { unpackLayer, type OpenBlob } from './unpack.ts'

/**
 * The unpacked layers, which all images share. Each layer has a folder named after its diff_id. Invariant: a folder
 * with such a name is complete and synced, because a single rename gives it this name after all checks.
 */
interface LayerStore {
  pathOf(diffId: string): string
  /**
   * Makes sure that the store has a layer. Calls `open` only when the layer is missing. Callers that need the same
   * layer share the work.
   */
  ensure(diffId: string, open: OpenBlob, signal: AbortSignal): Promise<void>
  /** Marks layers as in use now. `collectGarbage` keeps them for `GC_GRACE_MS`. */
  markUsed(diffIds: readonly string[]): void
  /** Protects layers from `collectGarbage` until the returned function is called, even if a pull takes long. */
  pin(diffIds: readonly string[]): () => void
  /**
   * Deletes layers whose folder is not in `keep` and that are neither pinned nor recently used. Returns the number of
   * deleted layers.
   */
  collectGarbage(keep: ReadonlySet<string>): Promise<number>
}

type LayerStoreDeps = {
  readonly dir: string
  readonly uidShift: number
  readonly temp: TempFolders
  readonly limits: ImageLimits
  readonly clock: Clock
}

/** How long a layer is kept after it was unpacked or used, because a process may be about to mount it. */
export const GC_GRACE_MS = 10 * 60_000

/** How many layers to download and unpack at a time. Each uses about half a core. */
const CONCURRENT_LAYERS = 3
const SYNC_TIMEOUT_MS = 120_000

/** Opens the folder of layers. Creates the folder when it is missing. */
export async function openLayerStore({ dir, uidShift, temp, limits, clock }: LayerStoreDeps): Promise<LayerStore> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const flights = makeSingleFlight<void>()
  const semaphore = makeSemaphore(CONCURRENT_LAYERS)
  const lastUsedMs = new Map<string, number>()
  const pins = new Map<symbol, readonly string[]>()

  // The name has 128 bits of the digest, which is enough against collisions. It must be short, because the options of
  // an overlay mount list all folders and must fit into one page of 4096 bytes.
  const pathOf = (diffId: string): string => join(dir, diffId.slice('sha256:'.length, 'sha256:'.length + 32))

  function markUsed(diffIds: readonly string[]): void {
    for (const diffId of diffIds) lastUsedMs.set(basename(pathOf(diffId)), clock.monotonicMs())
  }

  async function unpack(diffId: string, open: OpenBlob, signal: AbortSignal): Promise<void> {
    const into = await temp.create()
    try {
      const found = await unpackLayer(open, { into, uidShift, limits, signal })
      if (found !== diffId)
        throw new StartError('image', `a layer has the digest ${found}, but the image's configuration says ${diffId}`)
      await runCommand('sync', ['--file-system', into], { timeoutMs: SYNC_TIMEOUT_MS })
      await rename(into, pathOf(diffId))
      await syncFolder(dir)
    } catch (error) {
      await temp.remove(into)
      if (!(await isDirectory(pathOf(diffId)))) throw error // another process may have unpacked it meanwhile
    }
  }

  return {
    pathOf,
    markUsed,
    pin(diffIds) {
      const hold = Symbol('hold')
      pins.set(hold, diffIds)
      return () => {
        markUsed(diffIds)
        pins.delete(hold)
      }
    },
    async ensure(diffId, open, signal) {
      // If shared work fails, the registry of the caller that started the work may be the cause. This caller therefore
      // tries its own registry.
      for (;;) {
        if (await isDirectory(pathOf(diffId))) return
        const flight = flights.join(
          diffId,
          (shared) => semaphore.run(() => withRetries(clock, shared, () => unpack(diffId, open, shared))),
          signal,
        )
        try {
          await flight.result
          return
        } catch (error) {
          if (flight.isLeader || signal.aborted) throw error
        }
      }
    },
    async collectGarbage(keep) {
      const kept = new Set([...keep].map((path) => basename(path)))
      const isHeld = (name: string): boolean =>
        [...pins.values()].some((diffIds) => diffIds.some((diffId) => basename(pathOf(diffId)) === name))
      let deleted = 0
      for (const name of await readdir(dir)) {
        const touched = lastUsedMs.get(name)
        if (kept.has(name) || isHeld(name) || (touched !== undefined && clock.monotonicMs() - touched < GC_GRACE_MS))
          continue
        const { ctimeMs } = await stat(join(dir, name))
        if (clock.now().getTime() - ctimeMs < GC_GRACE_MS) continue
        const grave = await temp.create()
        // Renamed first, because an interrupted deletion would leave an incomplete layer under its name.
        await rename(join(dir, name), join(grave, name))
        lastUsedMs.delete(name)
        await temp.remove(grave)
        deleted += 1
      }
      return deleted
    },
  }
}

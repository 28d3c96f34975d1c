import { join } from 'node:path'
import type { Clock } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'
import { NO_DISK_RESERVE, type DiskReserve } from '../../disk-reserve.ts'
import { evictImages } from '../evict-images.ts'
import type { ImageLimits } from '../image.ts'
import type { ImageRecords } from '../image-records.ts'
import { openLayerSizes } from './layer-sizes.ts'
import { openLayerStore, type LayerStore } from './layer-store.ts'
import { makeStoreSpace, type StoreSpace } from '../store-space.ts'
import type { TempFolders } from '../temp-folders.ts'

/** The limits for all layers of a store together. */
export type LayerLimits = {
  /** The largest total size. Without it, the store grows without limit. */
  readonly storeBytes?: number
  readonly reserve?: DiskReserve
}

type LimitedLayersInput = LayerLimits & {
  readonly dir: string
  readonly records: ImageRecords
  readonly temp: TempFolders
  readonly uidShift: number
  readonly limits: ImageLimits
  readonly readLayersInUse: () => Promise<ReadonlySet<string>>
  readonly clock: Clock
  readonly log: Log
}

/** Opens the layers of an image store, and the space that they share. A pull beyond the space evicts images. */
export async function openLimitedLayers(
  input: LimitedLayersInput,
): Promise<{ readonly layers: LayerStore; readonly space: StoreSpace }> {
  const { dir, records, readLayersInUse, log, storeBytes = Number.POSITIVE_INFINITY, reserve = NO_DISK_RESERVE } = input
  const layersDir = join(dir, 'layers')
  const sizes = await openLayerSizes({ dir: join(dir, 'sizes'), layersDir })
  const space = makeStoreSpace({
    limitBytes: storeBytes,
    sizes,
    reserve,
    evict: (isShort) => evictImages({ records, layers, readLayersInUse, log }, isShort),
    words: { undone: 'the image was not pulled', kept: 'the other images in it are in use' },
  })
  const layers = await openLayerStore({ ...input, dir: layersDir, proofsDir: join(dir, 'proofs'), sizes, space })
  return { layers, space }
}

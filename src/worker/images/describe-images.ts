import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { openImageRecords, type ImageRecord } from './image-records.ts'
import { layerName } from './layers/layer-name.ts'
import { openLayerSizes } from './layers/layer-sizes.ts'
import { openTempFolders } from './temp-folders.ts'

/** An image in the store, and what its layers take. Images may share layers. */
export type StoredImage = {
  readonly record: ImageRecord
  readonly usedAt: Date
  readonly layers: readonly StoredLayer[]
}

/** `bytes` is null if the layer is gone: the image is pulled again at its next use. */
export type StoredLayer = { readonly diff_id: string; readonly bytes: number | null }

/** Describes all images of a store, the last used first. It works while the store is open elsewhere. */
export async function describeImages({
  dir,
  clock,
  log,
}: {
  readonly dir: string
  readonly clock: Clock
  readonly log: Log
}): Promise<readonly StoredImage[]> {
  const temp = await openTempFolders(join(dir, 'tmp'), log)
  const records = await openImageRecords(join(dir, 'images'), { temp, clock })
  const layersDir = join(dir, 'layers')
  const sizes = await openLayerSizes({ dir: join(dir, 'sizes'), layersDir })
  const described: StoredImage[] = []
  for (const { record, usedMs } of (await records.listByUse()).toReversed()) {
    const layers: StoredLayer[] = []
    for (const diff_id of new Set(record.diff_ids)) {
      const name = layerName(diff_id)
      layers.push({ diff_id, bytes: existsSync(join(layersDir, name)) ? await sizes.of(name) : null })
    }
    described.push({ record, usedAt: new Date(usedMs), layers })
  }
  return described
}

/** What the layers of an image take together. */
export function sizeOf(layers: readonly StoredLayer[]): number {
  return layers.reduce((sum, { bytes }) => sum + (bytes ?? 0), 0)
}

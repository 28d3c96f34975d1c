import type { Log } from '../../lib/log.ts'
import type { ImageRecord, ImageRecords } from './image-records.ts'
import type { LayerStore } from './layers/layer-store.ts'

type EvictionDeps = {
  readonly records: ImageRecords
  readonly layers: LayerStore
  /** The folders of the layers that sandboxes need, the stopped ones included. */
  readonly readLayersInUse: () => Promise<ReadonlySet<string>>
  readonly log: Log
}

/** The largest number of images. Records of images without layers would otherwise never count against any limit. */
const MAX_IMAGES = 4096

/**
 * Deletes layers that nothing needs, then the least recently used images, until `isShort` resolves with false. An image
 * stays if sandboxes need all its layers, because its end would free nothing. An image that an operator loaded stays
 * too, because no registry has it.
 */
export async function evictImages(deps: EvictionDeps, isShort: () => Promise<boolean>): Promise<void> {
  const { records, layers, log } = deps
  const inUse = await deps.readLayersInUse()
  const pathsOf = ({ diff_ids }: ImageRecord): readonly string[] => diff_ids.map((diffId) => layers.pathOf(diffId))
  let stored = (await records.listByUse()).map(({ record }) => record)
  await layers.collectGarbage(new Set([...stored.flatMap(pathsOf), ...inUse]))
  for (const record of stored.filter(({ origin }) => origin !== 'loaded')) {
    if (stored.length <= MAX_IMAGES && !(await isShort())) return
    const others = stored.filter((other) => other !== record)
    const needed = new Set([...others.flatMap(pathsOf), ...inUse])
    const freed = pathsOf(record).filter((path) => !needed.has(path))
    if (freed.some((path) => layers.isBusy(path)) || (freed.length === 0 && record.diff_ids.length > 0)) continue
    await records.remove(record.reference)
    await layers.discard(record.diff_ids, needed)
    stored = others
    log.info({ image: record.reference, digest: record.digest }, 'evicted an image to make space')
  }
}

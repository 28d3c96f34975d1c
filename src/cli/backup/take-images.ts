import { existsSync } from 'node:fs'
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { imagesFolder } from '../worker/worker-storage.ts'
import type { ArchiveTaker } from './archive-taker.ts'
import type { StoredArchive } from './manifest.ts'

/** The folders of the image store beside the layers: what is known about references and layers. */
const RECORDS = ['images', 'proofs', 'sizes'] as const
const LAYERS = 'layers'
/** A layer's folder is named by the start of its digest. Other names are work that isn't finished. */
const LAYER_NAME = /^[0-9a-f]{32}$/

/**
 * Stores the image store: its records, and each layer as an archive of its own. A stopped sandbox needs exactly the layers
 * that its disk was made over, and a registry may no longer have them.
 */
export async function takeImages(config: Config, taker: ArchiveTaker): Promise<readonly StoredArchive[]> {
  const dir = imagesFolder(config)
  const records = RECORDS.filter((name) => existsSync(join(dir, name)))
  if (records.length === 0) return []
  const archives = [await taker.takeReadable('images', 'records', { dir, paths: records, isChanging: true })]
  const folder = join(dir, LAYERS)
  const names = existsSync(folder) ? (await readdir(folder)).filter((name) => LAYER_NAME.test(name)) : []
  for (const name of names.sort()) {
    const archive = await taker.takeWhole('images', name, { dir, paths: [`${LAYERS}/${name}`] })
    if (archive !== null) archives.push(archive) // else it was evicted meanwhile, or is unreadable
  }
  return archives
}

import { existsSync } from 'node:fs'
import { readdir, writeFile, readlink } from 'node:fs/promises'
import { join } from 'node:path'
import type { Image } from '../../../images/image.ts'
import { StartError } from '../../../start-error.ts'
import { readFileOrNull } from '../../../../lib/files.ts'
import { mountFolderOf } from '../../../mounts.ts'

/**
 * The file with the image that a sandbox's disk was made over. The writable layer is only meaningful over exactly these
 * layers. So a sandbox keeps the image of its first start even if the tag moves, and needs no credential again.
 */
const PIN = 'image.json'

/** Stores the image beside a sandbox's disk. */
export async function pinImage(folder: string, image: Image): Promise<void> {
  await writeFile(join(folder, PIN), JSON.stringify(image), { mode: 0o600 })
}

/**
 * Reads the image that was stored beside a disk; null when there is none. Rejects with `StartError` of kind `image` when
 * one of its layers is gone: over other layers, the disk's content would be wrong.
 */
export async function readPinnedImage(folder: string): Promise<Image | null> {
  const image = await readPin(folder)
  if (image === null || image.layers.every((layer) => existsSync(layer))) return image
  throw new StartError(
    'image',
    `layers of the image that its disk was made over (${image.digest}) are gone from the worker`,
  )
}

/** Reads the layers that the disks in a folder were made over. They must not be deleted. */
async function readPinnedLayers(kept: string): Promise<readonly string[]> {
  const names = existsSync(kept) ? await readdir(kept) : []
  const images = await Promise.all(names.map((name) => readPin(join(kept, name))))
  return images.flatMap((image) => image?.layers ?? [])
}

async function readPin(folder: string): Promise<Image | null> {
  const text = await readFileOrNull(join(folder, PIN))
  return text === null ? null : (JSON.parse(text) as Image) // written by pinImage before the disk counted as kept
}

/** Reads the image layers that the sandboxes of the driver at `dir` need, running or stopped. They must not be deleted. */
export async function readLayersInUse(dir: string): Promise<ReadonlySet<string>> {
  const layers = new Set(await readPinnedLayers(join(dir, 'disks', 'kept')))
  const mountDir = mountFolderOf(dir)
  for (const run of await namesIn(mountDir)) {
    const links = join(mountDir, run, 'layers')
    for (const name of await namesIn(links)) {
      const layer = await readlink(join(links, name)).catch(nothingIfGone)
      if (layer !== null) layers.add(layer)
    }
  }
  return layers
}

async function namesIn(folder: string): Promise<readonly string[]> {
  return (await readdir(folder).catch(nothingIfGone)) ?? []
}

/** A run may end while its folder is read. An image without layers has a folder instead of a link. */
function nothingIfGone(error: unknown): null {
  const code = error instanceof Error && 'code' in error ? error.code : null
  if (code === 'ENOENT' || code === 'EINVAL') return null
  throw error
}

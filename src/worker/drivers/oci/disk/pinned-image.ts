import { existsSync } from 'node:fs'
import { readdir, writeFile, readlink } from 'node:fs/promises'
import { join } from 'node:path'
import type { Image } from '../../../images/image.ts'
import { StartError } from '../../../start-error.ts'
import { hasErrorCode } from '../../../../lib/error-code.ts'
import { readFileOrNull } from '../../../../lib/files.ts'
import { mountFolderOf } from '../../../mounts.ts'

/**
 * The name of the file that stores the image of a sandbox's disk. The writable layer is usable only with exactly the layers of
 * that image. A sandbox therefore keeps the image of its first start even if the tag moves, and needs no registry credential
 * again.
 */
const PIN = 'image.json'

/** Stores the image in the folder of a sandbox's disk. */
export async function pinImage(folder: string, image: Image): Promise<void> {
  await writeFile(join(folder, PIN), JSON.stringify(image), { mode: 0o600 })
}

/**
 * Reads the image that is stored with a disk; null if there is none. Rejects with `StartError` of reason `image` if one
 * of the image's layers is gone. Over other layers, the files of the writable layer would not fit.
 */
export async function readPinnedImage(folder: string): Promise<Image | null> {
  const image = await readPin(folder)
  if (image === null || image.layers.every((layer) => existsSync(layer))) return image
  throw new StartError(
    'image',
    `layers of the image that its disk was made over (${image.digest}) are gone from the worker`,
  )
}

/** Reads which image layers the disks in a folder need. These layers must not be deleted. */
async function readPinnedLayers(kept: string): Promise<readonly string[]> {
  const names = existsSync(kept) ? await readdir(kept) : []
  const images = await Promise.all(names.map((name) => readPin(join(kept, name))))
  return images.flatMap((image) => image?.layers ?? [])
}

async function readPin(folder: string): Promise<Image | null> {
  const text = await readFileOrNull(join(folder, PIN))
  return text === null ? null : (JSON.parse(text) as Image) // written by pinImage before the disk was marked ready
}

/** Reads which image layers the running and stopped sandboxes of the driver at `dir` need. These layers must not be deleted. */
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

/**
 * Returns null for the errors of a missing file and of a path that is no symlink, and throws any other error. A run may
 * end while its folder is read, and an image without layers has a folder in place of the symlinks.
 */
function nothingIfGone(error: unknown): null {
  if (hasErrorCode(error, 'ENOENT', 'EINVAL')) return null
  throw error
}

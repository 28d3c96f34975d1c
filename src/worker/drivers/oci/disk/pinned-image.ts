import { existsSync, writeFileSync } from 'node:fs'
import { readdir, readlink } from 'node:fs/promises'
import { basename, isAbsolute, join, relative } from 'node:path'
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

/**
 * Stores the image in the folder of a sandbox's disk. Layers are stored by their paths in the folder of the images, so that the
 * data folder may move.
 */
export function pinImage(folder: string, image: Image, imagesDir: string): void {
  const layers = image.layers.map((layer) => (layer.startsWith(`${imagesDir}/`) ? relative(imagesDir, layer) : layer))
  writeFileSync(join(folder, PIN), JSON.stringify({ ...image, layers }), { mode: 0o600 })
}

/**
 * Reads the image that is stored with a disk; null if there is none. Rejects with `StartError` of reason `image` if one
 * of the image's layers is gone. Over other layers, the files of the writable layer would not fit.
 */
export async function readPinnedImage(folder: string, imagesDir: string): Promise<Image | null> {
  const image = await readPin(folder, imagesDir)
  if (image === null || image.layers.every((layer) => existsSync(layer))) return image
  throw new StartError(
    'image',
    `layers of the image that its disk was made over (${image.digest}) are gone from the worker`,
  )
}

async function readPin(folder: string, imagesDir: string): Promise<Image | null> {
  const text = await readFileOrNull(join(folder, PIN))
  if (text === null) return null
  const image = JSON.parse(text) as Image // written by pinImage before the disk was marked ready
  return { ...image, layers: image.layers.map((layer) => layerPath(layer, imagesDir)) }
}

/** Returns the path of a layer. Earlier releases stored paths that a move of the data folder made wrong. */
function layerPath(stored: string, imagesDir: string): string {
  if (!isAbsolute(stored)) return join(imagesDir, stored)
  const own = join(imagesDir, 'layers', basename(stored))
  return existsSync(own) ? own : stored
}

/** What keeps an image: the disk of a sandbox, which may be stopped, or a snapshot. */
export type ImageUse = { readonly kind: 'sandbox' | 'snapshot'; readonly id: string; readonly image: Image }

/** Reads which disks and snapshots of a driver were made over which images. */
export async function readImageUses({ dir, imagesDir }: Omit<DriverFolders, 'key'>): Promise<readonly ImageUse[]> {
  const uses = await Promise.all(
    Object.entries(PINNED_FOLDERS).map(async ([name, kind]) => {
      const folder = join(dir, 'disks', name)
      const ids = await namesIn(folder)
      const pins = await Promise.all(ids.map((id) => readPin(join(folder, id), imagesDir)))
      return pins.flatMap((image, at) => (image === null ? [] : [{ kind, id: ids[at] ?? '', image }]))
    }),
  )
  return uses.flat()
}

/** The folders beneath `disks` whose folders have an image. */
const PINNED_FOLDERS = { kept: 'sandbox', snapshots: 'snapshot' } as const

/** The folders and the key of a driver. A data folder that was never started has no key. */
type DriverFolders = { readonly dir: string; readonly imagesDir: string; readonly key: string | null }

/** Reads which image layers the running and stopped sandboxes and the snapshots of a driver need. These layers must not be deleted. */
export async function readLayersInUse({ dir, imagesDir, key }: DriverFolders): Promise<ReadonlySet<string>> {
  const layers = new Set((await readImageUses({ dir, imagesDir })).flatMap(({ image }) => image.layers))
  if (key === null) return layers
  const mountDir = mountFolderOf(key)
  for (const run of await namesIn(mountDir)) {
    const links = join(mountDir, run, 'layers')
    for (const name of await namesIn(links)) {
      const layer = await readlink(join(links, name)).catch(nothingIfGone)
      if (layer !== null) layers.add(layerPath(layer, imagesDir))
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

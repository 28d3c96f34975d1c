import { readdir, readlink } from 'node:fs/promises'
import { join } from 'node:path'
import { mountFolderOf } from '../../../mounts.ts'
import { readPinnedLayers } from '../disk/pinned-image.ts'

/** The image layers that a sandbox of the driver at `dir` needs, running or stopped: these must not be deleted. */
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

/** A run may end, and its folder go, while it is read; an image of no layers has a folder in the place of a link. */
function nothingIfGone(error: unknown): null {
  const code = error instanceof Error && 'code' in error ? error.code : null
  if (code === 'ENOENT' || code === 'EINVAL') return null
  throw error
}

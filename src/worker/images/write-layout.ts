import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { mkdir, rename, stat, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import { localCommands, runCommand } from '../../lib/run-command.ts'
import { mount, unmountBelow } from '../mounts.ts'
import type { Image } from './image.ts'
import { hostArchitecture } from './manifest.ts'

/**
 * How many user ids an image's files may have. The image store shifts these ids to unprivileged ids of the machine (decision
 * 0005).
 */
const USERS = 65_536
/** How long writing a large image as one archive may take. */
const TAR_TIMEOUT_MS = 900_000

type WriteLayoutInput = {
  /** An empty folder for the layout and all temporary files. */
  readonly folder: string
  /** The number that the image store added to every owner id. */
  readonly uidShift: number
  /** The labels of the written image. They make two images with the same files differ. */
  readonly labels: Readonly<Record<string, string>>
  readonly clock: Clock
  readonly signal: AbortSignal
}

/**
 * Writes an image with unpacked layers as an OCI image layout, and returns the folder of the layout. This function mounts the layers
 * as one overlay, so the layout has a single layer. A repeated call needs another empty folder.
 */
export async function writeImageLayout(
  image: Pick<Image, 'config' | 'layers'>,
  { folder, uidShift, labels, clock, signal }: WriteLayoutInput,
): Promise<string> {
  const [merged, layout] = [join(folder, 'merged'), join(folder, 'layout')]
  const blobs = join(layout, 'blobs', 'sha256')
  for (const path of [merged, blobs]) await mkdir(path, { recursive: true, mode: 0o700 })
  const layer = join(folder, 'layer.tar')
  try {
    await mountLayers(merged, image.layers, folder)
    await writeTar(layer, merged, { folder, uidShift, signal })
  } finally {
    await unmountBelow(merged, { clock, commands: localCommands })
  }
  const diffId = await digestOf(layer)
  const size = (await stat(layer)).size
  await rename(layer, join(blobs, diffId))
  const put = async (document: object): Promise<{ readonly digest: string; readonly size: number }> => {
    const bytes = Buffer.from(JSON.stringify(document))
    const hex = createHash('sha256').update(bytes).digest('hex')
    await writeFile(join(blobs, hex), bytes)
    return { digest: `sha256:${hex}`, size: bytes.length }
  }
  const config = await put(imageDocument(image, diffId, labels))
  const manifest = await put({
    schemaVersion: 2,
    mediaType: 'application/vnd.oci.image.manifest.v1+json',
    config: { mediaType: 'application/vnd.oci.image.config.v1+json', ...config },
    layers: [{ mediaType: 'application/vnd.oci.image.layer.v1.tar', digest: `sha256:${diffId}`, size }],
  })
  await writeFile(join(layout, 'oci-layout'), JSON.stringify({ imageLayoutVersion: '1.0.0' }))
  const index = {
    schemaVersion: 2,
    manifests: [{ mediaType: 'application/vnd.oci.image.manifest.v1+json', ...manifest }],
  }
  await writeFile(join(layout, 'index.json'), JSON.stringify(index))
  return layout
}

/**
 * Mounts the layers as a readonly overlay. Uses a short symlink for each layer, because all paths together must fit into one
 * page of mount options.
 */
async function mountLayers(merged: string, layers: readonly string[], folder: string): Promise<void> {
  if (layers.length === 0) return
  const links = join(folder, 'layers')
  // A readonly overlay needs at least two layers. An empty layer changes nothing.
  const all = [join(folder, 'empty'), ...layers]
  await mkdir(join(folder, 'empty'))
  await mkdir(links)
  await Promise.all(all.map((layer, index) => symlink(layer, join(links, String(index)))))
  const lower = all.map((_, index) => String(index)).toReversed() // topmost first
  await mount(localCommands, ['-t', 'overlay', 'overlay', '-o', `ro,nodev,lowerdir=${lower.join(':')}`, merged], links)
}

/** Writes a tree as one layer. Reverts the store's shift of owner ids, so that the files have the image's owners. */
async function writeTar(
  target: string,
  root: string,
  { folder, uidShift, signal }: Pick<WriteLayoutInput, 'folder' | 'uidShift' | 'signal'>,
): Promise<void> {
  const map = join(folder, 'owners')
  // GNU tar maps owner ids only by a list. The `x` is a placeholder for the owner's name, which `--numeric-owner`
  // ignores.
  const lines = Array.from({ length: USERS }, (_, id) => `+${String(id + uidShift)} x:${String(id)}\n`)
  await writeFile(map, lines.join(''))
  const owners = ['--numeric-owner', `--owner-map=${map}`, `--group-map=${map}`]
  await tar(['--create', `--file=${target}`, '--format=posix', '--sort=name', ...owners, '-C', root, '.'], signal)
}

/** Runs GNU tar. */
export async function tar(args: readonly string[], signal: AbortSignal): Promise<void> {
  await runCommand('tar', args, { timeoutMs: TAR_TIMEOUT_MS, signal, env: { PATH: process.env['PATH'], LC_ALL: 'C' } })
}

function imageDocument({ config }: Pick<Image, 'config'>, diffId: string, labels: WriteLayoutInput['labels']): object {
  const { env, entrypoint, cmd, workdir, user } = config
  return {
    os: 'linux',
    architecture: hostArchitecture(),
    config: {
      Env: env,
      ...(entrypoint === null ? {} : { Entrypoint: entrypoint }),
      ...(cmd === null ? {} : { Cmd: cmd }),
      ...(workdir === null ? {} : { WorkingDir: workdir }),
      ...(user === null ? {} : { User: user }),
      Labels: labels,
    },
    rootfs: { type: 'layers', diff_ids: [`sha256:${diffId}`] },
  }
}

async function digestOf(path: string): Promise<string> {
  const hash = createHash('sha256')
  for await (const chunk of createReadStream(path)) hash.update(chunk)
  return hash.digest('hex')
}

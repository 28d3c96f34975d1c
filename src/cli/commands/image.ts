import { existsSync } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import type { Command } from 'commander'
import { systemClock } from '../../lib/clock.ts'
import { DEFAULT_OCI_SETTINGS } from '../../worker/drivers/oci/context.ts'
import { collectHelperFiles, hasNft } from '../../worker/drivers/oci/rootfs/helper-files.ts'
import { makeHelperImage } from '../../worker/images/helper-image.ts'
import { readImageUses, type ImageUse } from '../../worker/drivers/oci/disk/pinned-image.ts'
import { describeImages, sizeOf, type StoredImage } from '../../worker/images/describe-images.ts'
import type { ImageStore } from '../../worker/images/image-store.ts'
import { addSettings, runs, type Call } from '../command.ts'
import { openLog } from '../open-log.ts'
import { deleteUnusedLayers, imagesFolder, ociFolder, openImages, readImageBytes } from '../worker/worker-storage.ts'
import { servesImages } from '../worker/open-image-registry.ts'
import { formatBytes, formatTime } from './format.ts'
import { printJson, printTable } from './output.ts'
import { inspectServed, listServed, loadServed, notHere, pruneServed, removeServed } from './served-images.ts'

/** Defines `sandyard image`, which manages the images on this machine. */
export function defineImage(image: Command): void {
  const subcommand = (nameAndArgs: string, description: string): Command =>
    addSettings(image.command(nameAndArgs).description(description), 'dataDir', 'driver', 'logLevel')
  runs(
    subcommand('load <path> <reference>', 'import an archive or OCI layout under a reference'),
    either(load, loadServed),
  )
  runs(subcommand('list', 'list the images, with their sizes and what uses them'), either(list, listServed))
  runs(
    subcommand('inspect <reference>', 'print an image with its layers and what uses it, as JSON'),
    either(inspect, inspectServed),
  )
  runs(
    subcommand('remove <reference>', 'remove a reference, and the layers that nothing uses any more'),
    either(remove, removeServed),
  )
  runs(
    subcommand('prune', 'delete the layers that no reference, no sandbox and no snapshot uses').option(
      '--all',
      'also the pulled images that no sandbox and no snapshot uses',
    ),
    either(prune, pruneServed),
  )
  runs(
    addSettings(
      image.command('helper <file>').description('write the helper image of the driver kubernetes as an OCI archive'),
      'logLevel',
    ).option('--name <reference>', 'the name in the archive', 'sandyard-helper:latest'),
    writeHelper,
  )
}

/** Chooses by the driver: the images of the one for Pods are served to its cluster, and not unpacked here. */
function either(ofStore: (call: Call) => Promise<void>, ofServed: typeof ofStore): typeof ofStore {
  return (call) => (servesImages(call.config) ? ofServed(call) : ofStore(call))
}

async function writeHelper({ args, texts }: Call): Promise<void> {
  const [file = ''] = args
  const name = texts['name'] ?? 'sandyard-helper:latest'
  const files = await collectHelperFiles(DEFAULT_OCI_SETTINGS.initBinary)
  const content = await makeHelperImage(files, name)
  await writeFile(file, content)
  if (!hasNft(files))
    process.stderr.write('this machine has no nft (package nftables), which SANDYARD_KUBERNETES_NETWORK=rules needs\n')
  process.stdout.write(`${file} has ${name}, ${formatBytes(content.length)}; push it to a registry of your cluster\n`)
}

function open({ config }: Call): Promise<ImageStore> {
  return openImages(config, openLog(config))
}

async function load(call: Call): Promise<void> {
  const [path = '', reference = ''] = call.args
  const { digest } = await (await open(call)).load(path, reference, new AbortController().signal)
  process.stdout.write(`${reference} ${digest}\n`)
}

type UsedImage = StoredImage & { readonly uses: readonly ImageUse[] }

/** The images of this machine, the last used first, and the uses of images that no reference names any more. */
async function readImages({
  config,
}: Call): Promise<{ readonly images: readonly UsedImage[]; readonly rest: readonly ImageUse[] }> {
  const dir = imagesFolder(config)
  if (!existsSync(dir)) return { images: [], rest: [] }
  const uses = await readImageUses({ dir: ociFolder(config), imagesDir: dir })
  const stored = await describeImages({ dir, clock: systemClock, log: openLog(config) })
  const named = new Set(stored.map(({ record }) => record.digest))
  return {
    images: stored.map((one) => ({ ...one, uses: uses.filter(({ image }) => image.digest === one.record.digest) })),
    rest: uses.filter(({ image }) => !named.has(image.digest)),
  }
}

async function list(call: Call): Promise<void> {
  const { images, rest } = await readImages(call)
  const replaced = Map.groupBy(rest, ({ image }) => image.digest)
  printTable(
    ['REFERENCE', 'SIZE', 'LAST USED', 'SANDBOXES', 'SNAPSHOTS', 'DIGEST'],
    [
      ...images.map(({ record, layers, usedAt, uses }) => [
        record.reference,
        formatBytes(sizeOf(layers)),
        formatTime(usedAt),
        ...countsOf(uses),
        record.digest,
      ]),
      ...[...replaced].map(([digest, uses]) => [
        `${uses[0]?.image.reference ?? ''} (replaced)`,
        null,
        null,
        ...countsOf(uses),
        digest,
      ]),
    ],
  )
}

function countsOf(uses: readonly ImageUse[]): readonly string[] {
  return (['sandbox', 'snapshot'] as const).map((kind) => String(uses.filter((use) => use.kind === kind).length))
}

async function inspect(call: Call): Promise<void> {
  const [reference = ''] = call.args
  const record = existsSync(imagesFolder(call.config)) ? await (await open(call)).inspect(reference) : null
  const image = (await readImages(call)).images.find((one) => one.record.reference === record?.reference)
  if (image === undefined) throw notHere(reference)
  const { diff_ids: _, ...facts } = image.record
  const idsOf = (kind: ImageUse['kind']): readonly string[] =>
    image.uses.filter((use) => use.kind === kind).map(({ id }) => id)
  printJson({
    ...facts,
    used_at: formatTime(image.usedAt),
    size_bytes: sizeOf(image.layers),
    layers: image.layers,
    sandboxes: idsOf('sandbox'),
    snapshots: idsOf('snapshot'),
  })
}

async function remove(call: Call): Promise<void> {
  const [reference = ''] = call.args
  const images = existsSync(imagesFolder(call.config)) ? await open(call) : null
  if (images === null || (await images.inspect(reference)) === null) throw notHere(reference)
  await images.remove(reference)
  process.stdout.write(`${reference} is removed; ${await deleteLayers(call, images)}\n`)
}

async function prune(call: Call): Promise<void> {
  if (!existsSync(imagesFolder(call.config))) {
    process.stdout.write('0 layers were deleted\n')
    return
  }
  const store = await open(call)
  if (call.switches.has('all')) {
    for (const { record, uses } of (await readImages(call)).images) {
      if (uses.length > 0 || record.origin === 'loaded') continue
      await store.remove(record.reference)
      process.stdout.write(`${record.reference} is removed\n`)
    }
  }
  process.stdout.write(`${await deleteLayers(call, store)}\n`)
}

/** Deletes the layers that nothing uses. Resolves with a sentence about them. */
async function deleteLayers({ config }: Call, store: ImageStore): Promise<string> {
  const before = await readImageBytes(config)
  const count = await deleteUnusedLayers(config, store)
  if (count === 0) return '0 layers were deleted'
  return `${String(count)} layers were deleted, which had ${formatBytes(before - (await readImageBytes(config)))}`
}

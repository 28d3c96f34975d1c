import { existsSync } from 'node:fs'
import type { Command } from 'commander'
import { openLog } from '../open-log.ts'
import type { ImageStore } from '../../worker/images/image-store.ts'
import { deleteUnusedLayers, imagesFolder, openImages } from '../worker/worker-storage.ts'
import { addSettings, runs, type Call } from '../command.ts'

/** Defines `sandyard image`, which manages the images on this machine. */
export function defineImage(image: Command): void {
  const subcommand = (nameAndArgs: string, description: string): Command =>
    addSettings(image.command(nameAndArgs).description(description), 'dataDir', 'logLevel')
  runs(subcommand('load <path> <reference>', 'import an archive or OCI layout under a reference'), load)
  runs(subcommand('list', 'list the references'), list)
  runs(subcommand('remove <reference>', 'remove a reference, and the layers that nothing uses any more'), remove)
  runs(subcommand('prune', 'delete the layers that no reference and no sandbox uses'), prune)
}

function open({ config }: Call): Promise<ImageStore> {
  return openImages(config, openLog(config))
}

async function load(call: Call): Promise<void> {
  const [path = '', reference = ''] = call.args
  const { digest } = await (await open(call)).load(path, reference, new AbortController().signal)
  process.stdout.write(`${reference} ${digest}\n`)
}

async function list(call: Call): Promise<void> {
  if (!existsSync(imagesFolder(call.config))) return
  for (const name of await (await open(call)).list()) process.stdout.write(`${name}\n`)
}

async function remove(call: Call): Promise<void> {
  const [reference = ''] = call.args
  const images = existsSync(imagesFolder(call.config)) ? await open(call) : null
  if (images === null || (await images.inspect(reference)) === null)
    throw new Error(`there is no image '${reference}' here; \`sandyard image list\` lists those that there are`)
  await images.remove(reference)
  const count = await deleteUnusedLayers(call.config, images)
  process.stdout.write(`${reference} is removed; ${String(count)} layers were deleted\n`)
}

async function prune(call: Call): Promise<void> {
  const isStore = existsSync(imagesFolder(call.config))
  const count = isStore ? await deleteUnusedLayers(call.config, await open(call)) : 0
  process.stdout.write(`${String(count)} layers were deleted\n`)
}

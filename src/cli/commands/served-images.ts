import type { ImageRecord } from '../../worker/images/image-records.ts'
import type { LoadedImages } from '../../worker/registry/loaded-images.ts'
import type { Call } from '../command.ts'
import { openLog } from '../open-log.ts'
import { openServedStore } from '../worker/open-image-registry.ts'
import { formatBytes, formatTime } from './format.ts'
import { printJson, printTable } from './output.ts'

// `sandyard image` with the driver `kubernetes`: the images that its registry serves.

const open = ({ config }: Call): Promise<LoadedImages> => openServedStore(config, openLog(config))

/** Imports an archive or layout under a reference. */
export async function loadServed(call: Call): Promise<void> {
  const [path = '', reference = ''] = call.args
  const { digest } = await (await open(call)).load(path, reference, new AbortController().signal)
  process.stdout.write(`${reference} ${digest}\n`)
}

/** Prints all images. */
export async function listServed(call: Call): Promise<void> {
  const store = await open(call)
  const images = (await store.list()).toSorted((a, b) => (a.reference < b.reference ? -1 : 1))
  const rows = images.map(async (record) => [
    record.reference,
    formatBytes(await sizeOf(store, record)),
    formatTime(new Date(record.stored_at)),
    record.digest,
  ])
  printTable(['REFERENCE', 'SIZE', 'LOADED', 'DIGEST'], await Promise.all(rows))
}

/** Prints one image as JSON. */
export async function inspectServed(call: Call): Promise<void> {
  const [reference = ''] = call.args
  const store = await open(call)
  const record = await store.inspect(reference)
  if (record === null) throw notHere(reference)
  const { diff_ids: _, ...facts } = record
  const { blobs = [] } = (await store.readManifest(record.digest)) ?? {}
  printJson({
    ...facts,
    size_bytes: await sizeOf(store, record),
    blobs: blobs.map(({ digest, size }) => ({ digest, size })),
  })
}

/** Removes a reference with the blobs that no other image has. */
export async function removeServed(call: Call): Promise<void> {
  const [reference = ''] = call.args
  const store = await open(call)
  if ((await store.inspect(reference)) === null) throw notHere(reference)
  await store.remove(reference)
  process.stdout.write(`${reference} is removed; ${await deleteBlobs(store)}\n`)
}

/** Deletes the blobs that no image has. */
export async function pruneServed(call: Call): Promise<void> {
  process.stdout.write(`${await deleteBlobs(await open(call))}\n`)
}

async function deleteBlobs(store: LoadedImages): Promise<string> {
  return `${String(await store.prune())} files of images were deleted`
}

async function sizeOf(store: LoadedImages, { digest }: ImageRecord): Promise<number> {
  const { blobs = [] } = (await store.readManifest(digest)) ?? {}
  return blobs.reduce((sum, { size }) => sum + size, 0)
}

/** The error for a reference that nothing here has. */
export function notHere(reference: string): Error {
  return new Error(`there is no image '${reference}' here; \`sandyard image list\` lists those that there are`)
}

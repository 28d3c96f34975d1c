import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../../lib/clock.ts'
import type { Image } from '../../images/image.ts'
import { makeSingleFlight } from '../../../lib/turns/single-flight.ts'
import { StartError } from '../../start-error.ts'
import { localCommands } from '../../../lib/run-command.ts'
import { unmountBelow } from '../../mounts.ts'
import { exportImage } from './export-image.ts'
import type { MsbCli } from './msb-cli.ts'

/** Imports images from the worker's image store into the runtime's own image store. */
export type VmImages = {
  /**
   * Imports an image unless the runtime has it already. Returns the image's reference in the runtime's store. Rejects with
   * `StartError` of reason `host`, or with the signal's reason.
   */
  importImage(image: Image, signal: AbortSignal): Promise<string>
  /**
   * Deletes the imported images whose digests are not in `digests`. The set must contain the image of each sandbox that
   * has a disk.
   */
  deleteExcept(digests: ReadonlySet<string>): Promise<void>
}

type VmImagesInput = {
  readonly dir: string
  readonly uidShift: number
  readonly msb: MsbCli
  readonly clock: Clock
}

const PREFIX = 'localhost/sandyard:'

/** Creates the importer of images. Deletes the unfinished imports of an earlier worker process. */
export async function openVmImages({ dir, uidShift, msb, clock }: VmImagesInput): Promise<VmImages> {
  const folder = join(dir, 'exports')
  await unmountBelow(folder, { clock, commands: localCommands }) // unmounts the layers of an interrupted export
  await rm(folder, { recursive: true, force: true })
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const flights = makeSingleFlight<string>()

  const takeIn = async (image: Image, signal: AbortSignal): Promise<string> => {
    const reference = referenceOf(image.digest)
    if ((await msb.images()).includes(reference)) return reference
    const own = await mkdtemp(join(folder, 'image-'))
    try {
      await msb.load(await exportImage(image, { folder: own, uidShift, clock, signal }), reference, signal)
      return reference
    } finally {
      await rm(own, { recursive: true, force: true })
    }
  }
  return {
    async importImage(image, signal) {
      try {
        return await flights.join(image.digest, (shared) => takeIn(image, shared), signal).result
      } catch (error) {
        signal.throwIfAborted()
        throw new StartError('host', `image ${image.reference} could not be converted for microVMs`, error)
      }
    },
    async deleteExcept(digests) {
      const kept = new Set([...digests].map(referenceOf))
      for (const reference of await msb.images()) {
        if (reference.startsWith(PREFIX) && !kept.has(reference)) await msb.removeImage(reference)
      }
    },
  }
}

/**
 * Returns the runtime's reference for an image with this digest. The digest becomes the tag, which must have at most
 * 128 characters and no colon.
 */
function referenceOf(digest: string): string {
  return `${PREFIX}${digest.replace(':', '-')}`
}

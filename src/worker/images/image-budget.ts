import { StartError } from '../start-error.ts'
import type { ImageLimits } from './image.ts'

/**
 * What one image may still unpack. All layers of the image share it, however many are unpacked at the same time. An
 * image beyond a limit is refused at the first excess byte or file.
 */
export type ImageBudget = {
  /** Starts to count a layer. A repeated attempt at the same layer starts again at zero. */
  beginLayer(diffId: string): LayerBudget
}

/** Counts what one layer unpacks. Both functions throw `StartError('image')` beyond a limit of the image. */
export type LayerBudget = {
  addBytes(count: number): void
  /** Counts files, folders and links. Folders that the layer only implies count too, because each takes an inode. */
  addFiles(count: number): void
}

type Amounts = { bytes: number; files: number }

/** Makes the budget of one image. `imageName` begins the message of a refusal, such as `image a:1`. */
export function makeImageBudget(imageName: string, limits: ImageLimits): ImageBudget {
  const layers = new Map<string, Amounts>()
  const total: Amounts = { bytes: 0, files: 0 }
  return {
    beginLayer(diffId) {
      const earlier = layers.get(diffId) ?? { bytes: 0, files: 0 }
      total.bytes -= earlier.bytes
      total.files -= earlier.files
      const own: Amounts = { bytes: 0, files: 0 }
      layers.set(diffId, own)
      return {
        addBytes(count) {
          own.bytes += count
          total.bytes += count
          if (total.bytes > limits.unpackedImageBytes) {
            throw new StartError(
              'image',
              `${imageName} is larger than ${formatBytes(limits.unpackedImageBytes)} when unpacked, which is the limit of this worker (SANDYARD_IMAGE_MAX_GIB)`,
            )
          }
        },
        addFiles(count) {
          own.files += count
          total.files += count
          if (total.files > limits.filesPerImage) {
            throw new StartError(
              'image',
              `${imageName} has more than ${String(limits.filesPerImage)} files, which is the limit of this worker (SANDYARD_IMAGE_MAX_FILES)`,
            )
          }
        },
      }
    },
  }
}

const GIB = 1024 ** 3

function formatBytes(bytes: number): string {
  return bytes % GIB === 0 ? `${String(bytes / GIB)} GiB` : `${String(bytes)} bytes`
}

import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../../lib/clock.ts'
import type { Image } from '../../images/image.ts'
import { tar, writeImageLayout } from '../../images/write-layout.ts'

type ExportImageInput = {
  /** An empty folder for the archive and all temporary files. */
  readonly folder: string
  /** The number that the image store added to every owner id. */
  readonly uidShift: number
  readonly clock: Clock
  readonly signal: AbortSignal
}

/**
 * Writes a stored image as an archive for `msb load`, and returns the archive's path. A repeated export needs
 * another empty folder.
 */
export async function exportImage(image: Image, input: ExportImageInput): Promise<string> {
  const layout = await writeImageLayout(image, { ...input, labels: { 'sandyard.digest': image.digest } })
  const archive = join(input.folder, 'image.tar')
  await tar(['--create', `--file=${archive}`, '-C', layout, '.'], input.signal)
  await rm(layout, { recursive: true })
  return archive
}

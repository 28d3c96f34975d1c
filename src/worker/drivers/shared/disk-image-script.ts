import { join } from 'node:path'
import { SANDBOX_IDS } from '../../../domain/workers/id-range.ts'

/** Serves a disk image by a program without rights: see its head. */
export const DISK_IMAGE_SCRIPT = join(import.meta.dirname, '../../perl/disk-image.pl')
/** Its exit code when the image's owner may see its reason. */
export const WITH_REASON = 2
/** The id within a sandbox's range that serves images: the last one, which no image or client uses. */
export const SERVER_USER = SANDBOX_IDS - 1

const REASON_LENGTH = 300

/** Returns the end of what a server said, on one line. A server repeats bytes of the image. */
export function printableEnd(text: string): string {
  return text
    .replaceAll(/[^\x20-\x7e]+/g, ' ')
    .trim()
    .slice(-REASON_LENGTH)
}

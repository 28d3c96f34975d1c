import { createHash } from 'node:crypto'

/** A key for the mounts and cgroups of a test's folder. Earlier releases made the keys of installations in this way. */
export function folderHash(dir: string): string {
  return createHash('sha256').update(dir).digest('hex').slice(0, 12)
}

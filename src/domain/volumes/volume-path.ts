import { FILE_NAME_MAX_BYTES, PATH_MAX_BYTES } from '../requests/request-bounds.ts'
import { byteLength } from '../names.ts'

/** The names from a volume's root to a file. Empty for the root itself. */
export type VolumePath = readonly string[]

/**
 * Parses the path of a client's file request into names, or returns the reason for its refusal. A path is relative to
 * the volume's root, with or without a leading slash. Empty and `.` steps are skipped. `..` is always refused, because
 * its meaning depends on the symlinks in the volume.
 */
export function parseVolumePath(path: string): { readonly names: VolumePath } | { readonly refused: string } {
  if (byteLength(path) > PATH_MAX_BYTES)
    return { refused: `a path has at most ${String(PATH_MAX_BYTES)} bytes, this one has ${String(byteLength(path))}` }
  if (!path.isWellFormed()) return { refused: 'a path is Unicode text without half of a surrogate pair' }
  if (path.includes('\0')) return { refused: 'a path contains no NUL' }
  if (path.startsWith('//'))
    return { refused: "a path begins with one slash or none, and is relative to the volume's root" }
  const names = path.split('/').filter((name) => name !== '' && name !== '.')
  if (names.includes('..')) return { refused: "a path contains no '..'" }
  if (names.some((name) => byteLength(name) > FILE_NAME_MAX_BYTES))
    return { refused: `each name of a path has at most ${String(FILE_NAME_MAX_BYTES)} bytes` }
  return { names }
}

import { FILE_NAME_MAX_BYTES, PATH_MAX_BYTES } from '../requests/request-bounds.ts'
import { byteLength } from '../sandboxes/names.ts'

/** The names that lead from a volume's root to a file; none for the root itself. */
export type VolumePath = readonly string[]

/**
 * A path of a client's file request as names, or why it may not be asked for. One leading slash means the volume's root, as
 * no slash does; empty and `.` steps are skipped. `..` is refused even where it would stay inside: with symlinks in a
 * volume its meaning depends on what lies there.
 */
export function parseVolumePath(path: string): { readonly names: VolumePath } | { readonly refused: string } {
  if (byteLength(path) > PATH_MAX_BYTES)
    return { refused: `a path has at most ${String(PATH_MAX_BYTES)} bytes, this one ${String(byteLength(path))}` }
  if (!path.isWellFormed()) return { refused: 'a path is Unicode without lone surrogates' }
  if (path.includes('\0')) return { refused: 'a path holds no NUL' }
  if (path.startsWith('//'))
    return { refused: 'a path begins with one slash or none: it is from the root of the volume' }
  const names = path.split('/').filter((name) => name !== '' && name !== '.')
  if (names.includes('..')) return { refused: "a path holds no '..'" }
  if (names.some((name) => byteLength(name) > FILE_NAME_MAX_BYTES))
    return { refused: `a name has at most ${String(FILE_NAME_MAX_BYTES)} bytes` }
  return { names }
}

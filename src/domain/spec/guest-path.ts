import { PATH_MAX_BYTES } from '../requests/request-bounds.ts'
import { byteLength } from '../names.ts'

/** Describes a valid path in a sandbox. */
export const GUEST_PATH_RULE = `an absolute path of at most ${String(PATH_MAX_BYTES)} bytes without NUL that stays below /`

/**
 * Removes empty, `.` and `..` steps from a path. Returns null if the path is not absolute, contains a NUL, is too long,
 * or leads above the root. It checks names only. Code that opens the path resolves symlinks.
 */
export function normalizeGuestPath(path: string): string | null {
  if (!path.startsWith('/') || path.includes('\0') || byteLength(path) > PATH_MAX_BYTES) return null
  const steps: string[] = []
  for (const step of path.split('/')) {
    if (step === '' || step === '.') continue
    if (step !== '..') steps.push(step)
    else if (steps.pop() === undefined) return null
  }
  return `/${steps.join('/')}`
}

import { PATH_MAX_BYTES } from '../requests/request-bounds.ts'
import { byteLength } from '../sandboxes/names.ts'

/** What a path in a sandbox may be, in words. */
export const GUEST_PATH_RULE = `an absolute path of at most ${String(PATH_MAX_BYTES)} bytes without NUL that stays below /`

/**
 * The path without empty, `.` and `..` steps, or null when it is not absolute, holds a NUL, is too long, or climbs above
 * the root. Names only: whether a step is a link is for the one who opens it.
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

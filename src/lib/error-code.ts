/**
 * The code of an error, or null if it has none: the kernel's name of a failed system call (`ENOENT`), a name of Node's
 * own (`ABORT_ERR`), or one that a library chose.
 */
export function errorCodeOf(error: unknown): string | null {
  return error instanceof Error && 'code' in error ? String(error.code) : null
}

/** Whether an error has one of these codes. */
export function hasErrorCode(error: unknown, ...codes: readonly string[]): boolean {
  const code = errorCodeOf(error)
  return code !== null && codes.includes(code)
}

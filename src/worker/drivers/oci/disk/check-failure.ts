import type { CommandResult } from '../../../../lib/run-command.ts'

/** The bits of the exit code of e2fsck(8). 1 and 2 say that all errors were corrected. */
const UNCORRECTED = 4
const OPERATIONAL = 8
const CANCELLED = 32

/** How many characters of the program's last words are shown. */
const WORDS_LIMIT = 300

/**
 * Describes why a disk could not be checked and repaired. Null if it is sound now. Only exit code 4 says that the file system is
 * damaged: after an operational error, such as a disk in use or a full memory, nothing is known about it.
 */
export function describeCheckFailure({ code, stdout, stderr }: CommandResult): string | null {
  if (code !== null && (code & ~3) === 0) return null
  const words = (stderr.trim() === '' ? stdout : stderr).trim().slice(-WORDS_LIMIT)
  const said = `e2fsck exit ${String(code)}${words === '' ? '' : `: ${words}`}`
  if (code === null || (code & CANCELLED) !== 0) return `the check of the sandbox's disk was interrupted (${said})`
  if ((code & OPERATIONAL) === 0 && (code & UNCORRECTED) !== 0)
    return `the sandbox's disk is damaged beyond repair (${said})`
  return `the sandbox's disk could not be checked (${said})`
}

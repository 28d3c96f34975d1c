import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrorCode } from '../../../../lib/error-code.ts'
import { readFileSyncOrNull } from '../../../../lib/files.ts'

/**
 * Writes a cgroup file on this thread. The kernel needs a few microseconds for the write, and a switch to another
 * thread would take 45 us of processor time (2026-11).
 */
export function writeValue(path: string, value: number | string): void {
  writeFileSync(path, String(value))
}

/** Writes a cgroup file if the kernel has it. */
export function writeIfPresent(path: string, value: number | string): void {
  if (existsSync(path)) writeValue(path, value)
}

/** Reads a cgroup file that contains one number. Undefined if the file is missing. */
export function readNumber(path: string): number | undefined {
  const text = readFileSyncOrNull(path)
  return text === null ? undefined : Number(text)
}

/**
 * Reads one number of a cgroup file that has a name and a number in each line. Null if the file or the name is missing. Reads on
 * this thread, as `writeValue` writes.
 */
export function readCounter(path: string, name: string): number | null {
  const text = readFileSyncOrNull(path)
  const value = text === null ? undefined : new RegExp(`^${name} (\\d+)$`, 'm').exec(text)?.[1]
  return value === undefined ? null : Number(value)
}

/** Lists the host's ids of all processes in a cgroup and beneath it. Empty if the cgroup doesn't exist. */
export function pidsBelow(dir: string): readonly number[] {
  const own = readProcesses(dir)
    .split('\n')
    .filter((line) => line !== '')
  return [...own.map(Number), ...foldersIn(dir).flatMap((name) => pidsBelow(join(dir, name)))]
}

/** Reads the processes of one cgroup. Those of a threaded one are listed by a cgroup above it, which is not threaded (cgroups(7)). */
function readProcesses(dir: string): string {
  try {
    return readFileSyncOrNull(join(dir, 'cgroup.procs')) ?? ''
  } catch (error) {
    if (hasErrorCode(error, 'EOPNOTSUPP', 'ENOTSUP')) return ''
    throw error
  }
}

/** Removes a cgroup with all cgroups beneath it. Succeeds if it doesn't exist, and rejects if it has processes. */
export async function removeTree(dir: string): Promise<void> {
  if (!existsSync(dir)) return
  for (const name of foldersIn(dir)) await removeTree(join(dir, name))
  try {
    await rmdir(dir)
  } catch (error) {
    if (!hasErrorCode(error, 'ENOENT')) throw error
  }
}

/** Lists the names of the cgroups directly beneath a cgroup. Empty if it doesn't exist. */
export function foldersIn(dir: string): readonly string[] {
  if (!existsSync(dir)) return [] // an error that nobody uses costs more
  try {
    const entries = readdirSync(dir, { withFileTypes: true })
    return entries.filter((entry) => entry.isDirectory()).map((entry) => entry.name)
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT', 'ENODEV')) return []
    throw error
  }
}

/** Reads a kernel setting beneath `/proc/sys` that is one number. */
export function readKernelNumber(name: string): number {
  return Number(readFileSync(join('/proc/sys', name), 'utf8'))
}

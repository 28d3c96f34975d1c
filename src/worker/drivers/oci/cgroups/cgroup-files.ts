import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { readdir, rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrorCode } from '../../../../lib/error-code.ts'
import { readFileOrNull, readFileSyncOrNull } from '../../../../lib/files.ts'

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
export async function readNumber(path: string): Promise<number | undefined> {
  const text = await readFileOrNull(path)
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
export async function pidsBelow(dir: string): Promise<readonly number[]> {
  const own = (await readProcesses(dir)).split('\n').filter((line) => line !== '')
  const below = await Promise.all((await foldersIn(dir)).map((name) => pidsBelow(join(dir, name))))
  return [...own.map(Number), ...below.flat()]
}

/** Reads the processes of one cgroup. Those of a threaded one are listed by a cgroup above it, which is not threaded (cgroups(7)). */
async function readProcesses(dir: string): Promise<string> {
  try {
    return (await readFileOrNull(join(dir, 'cgroup.procs'))) ?? ''
  } catch (error) {
    if (hasErrorCode(error, 'EOPNOTSUPP', 'ENOTSUP')) return ''
    throw error
  }
}

/** Removes a cgroup with all cgroups beneath it. Succeeds if it doesn't exist, and rejects if it has processes. */
export async function removeTree(dir: string): Promise<void> {
  if (!existsSync(dir)) return // a run has a cgroup in few of the hierarchies of version 1
  for (const name of await foldersIn(dir)) await removeTree(join(dir, name))
  try {
    await rmdir(dir)
  } catch (error) {
    if (!hasErrorCode(error, 'ENOENT')) throw error
  }
}

/** Lists the names of the cgroups directly beneath a cgroup. Empty if it doesn't exist. */
export async function foldersIn(dir: string): Promise<readonly string[]> {
  try {
    const entries = await readdir(dir, { withFileTypes: true })
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

import { mkdir, mkdtemp, readFile, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { Log } from '../../lib/log.ts'
import { CommandError, runCommand } from '../../lib/run-command.ts'

/** Folders for work in progress. When a process dies, the next one that opens the store removes its folders. */
export interface TempFolders {
  create(): Promise<string>
  /**
   * Deletes a folder with everything in it. A failure is logged, and the folder is deleted when the store is next
   * opened.
   */
  remove(path: string): Promise<void>
}

/** The time limit for a deletion: enough for the largest allowed image on a slow disk. */
const REMOVE_TIMEOUT_MS = 10 * 60_000

/**
 * Opens the folder and deletes what dead processes left. Names carry the owner's process id and start time, so
 * `sandyard image load` beside a running worker never deletes the worker's folders.
 */
export async function openTempFolders(dir: string, log: Log): Promise<TempFolders> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const self = `${String(process.pid)}-${await startTimeOf(process.pid)}`

  // Uses `rm`, which deletes 100,000 files without going through the event loop for each.
  async function remove(path: string): Promise<void> {
    try {
      await runCommand('rm', ['-rf', '--', path], { timeoutMs: REMOVE_TIMEOUT_MS })
    } catch (error) {
      if (!(error instanceof CommandError)) throw error
      log.warn({ path, error: error.message }, 'a temporary folder of the image store could not be deleted')
    }
  }

  for (const name of await readdir(dir)) {
    const [pid, startTime] = name.split('-')
    const isAlive = pid !== undefined && startTime !== undefined && startTime === (await startTimeOf(Number(pid)))
    if (!isAlive) await remove(join(dir, name))
  }
  return { create: () => mkdtemp(join(dir, `${self}-`)), remove }
}

/**
 * When a process started, in clock ticks since boot (proc(5), field 22 of stat). Empty when there is no such process.
 */
async function startTimeOf(pid: number): Promise<string> {
  try {
    const stat = await readFile(`/proc/${String(pid)}/stat`, 'utf8')
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? ''
  } catch (error) {
    if (error instanceof Error && 'code' in error && (error.code === 'ENOENT' || error.code === 'ESRCH')) return ''
    throw error
  }
}

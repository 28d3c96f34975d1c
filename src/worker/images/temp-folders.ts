import { mkdir, mkdtemp, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { readFileOrNull } from '../../lib/files.ts'
import type { Log } from '../../lib/log.ts'
import { CommandError, runCommand } from '../../lib/run-command.ts'

/** Temporary folders. If a process dies, the next process that opens the store removes its folders. */
export interface TempFolders {
  create(): Promise<string>
  /**
   * Deletes a folder with everything in it. A failure is logged, and a later process that opens the store deletes the
   * folder.
   */
  remove(path: string): Promise<void>
  /** Creates a folder for `work`, and removes it afterwards. */
  use<T>(work: (folder: string) => Promise<T>): Promise<T>
}

/** The time limit for a deletion. It suffices for the largest allowed image on a slow disk. */
const REMOVE_TIMEOUT_MS = 10 * 60_000

/**
 * Opens the parent folder `dir` and deletes the temporary folders of dead processes. A temporary folder's name contains
 * the process id and start time of its owner. Therefore `sandyard image load` never deletes the folders of a running
 * worker.
 */
export async function openTempFolders(dir: string, log: Log): Promise<TempFolders> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const self = `${String(process.pid)}-${await startTimeOf(process.pid)}`

  // Uses the command `rm`, which deletes 100,000 files without using the event loop for each file.
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
  const create = (): Promise<string> => mkdtemp(join(dir, `${self}-`))
  return {
    create,
    remove,
    async use(work) {
      const folder = await create()
      try {
        return await work(folder)
      } finally {
        await remove(folder)
      }
    },
  }
}

/**
 * The start time of a process in clock ticks since boot (proc(5), field 22 of stat). Empty when there is no such
 * process.
 */
async function startTimeOf(pid: number): Promise<string> {
  const stat = await readFileOrNull(`/proc/${String(pid)}/stat`)
  return stat?.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? ''
}

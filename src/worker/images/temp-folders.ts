import { mkdir, mkdtemp, readFile, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { Log } from '../../lib/log.ts'
import { CommandError, runCommand } from '../../lib/run-command.ts'

/** Folders for work in progress. What a process that died left behind is removed when the next one opens the store. */
export interface TempFolders {
  create(): Promise<string>
  /** Deletes a folder with all in it. One that can't be deleted now is logged and deleted at the next opening. */
  remove(path: string): Promise<void>
}

/** The most a deletion may take, in milliseconds: the largest image that is allowed, on a slow disk. */
const REMOVE_TIMEOUT_MS = 10 * 60_000

/**
 * Opens the folder and removes what dead processes left. Names carry the owner's process id and start time, so that
 * `sandyard image load` beside a running worker never removes the worker's work.
 */
export async function openTempFolders(dir: string, log: Log): Promise<TempFolders> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const self = `${String(process.pid)}-${await startTimeOf(process.pid)}`

  // `rm` and not Node's own: it deletes 100,000 files without taking a turn of the event loop for each.
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

/** When a process began, in clock ticks since boot (proc(5), field 22 of stat); empty for one that isn't there. */
async function startTimeOf(pid: number): Promise<string> {
  try {
    const stat = await readFile(`/proc/${String(pid)}/stat`, 'utf8')
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? ''
  } catch (error) {
    if (error instanceof Error && 'code' in error && (error.code === 'ENOENT' || error.code === 'ESRCH')) return ''
    throw error
  }
}

import { readFileSync, watch } from 'node:fs'
import type { FSWatcher } from 'node:fs'
import { basename } from 'node:path'

/** Waits for a runtime to write process ids to files in one folder. It uses inotify instead of polling. */
export type PidFileWaiter = {
  /**
   * Resolves with the process id in a file once the runtime has written it, or with null if the file contains none when
   * `ended` resolves.
   */
  wait(path: string, ended: Promise<unknown>): Promise<number | null>
}

/** Creates a waiter that watches the folder only while a caller waits. */
export function makePidFileWaiter(folder: string): PidFileWaiter {
  const waiting = new Map<string, () => void>()
  let watcher: FSWatcher | null = null

  return {
    async wait(path, ended) {
      const name = basename(path)
      try {
        return await new Promise((resolve, reject) => {
          const look = (): void => {
            const pid = readPid(path)
            if (pid !== null) resolve(pid)
          }
          waiting.set(name, look)
          watcher ??= watch(folder, (_event, changed) => {
            if (changed !== null) waiting.get(changed)?.()
          }).on('error', reject)
          look()
          void ended.then(() => {
            resolve(readPid(path))
          }, reject)
        })
      } finally {
        waiting.delete(name)
        if (waiting.size === 0) {
          watcher?.close()
          watcher = null
        }
      }
    },
  }
}

/**
 * Reads a process id. Returns null until the file contains a complete number, because runtimes create the file before they
 * write to it.
 */
function readPid(path: string): number | null {
  try {
    const text = readFileSync(path, 'utf8').trim()
    return /^\d+$/.test(text) ? Number(text) : null
  } catch {
    return null // not there yet
  }
}

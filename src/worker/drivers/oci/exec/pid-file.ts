import { readFileSync, watch } from 'node:fs'
import type { FSWatcher } from 'node:fs'
import { basename } from 'node:path'

/** Waits for the process ids that a runtime writes to files of one folder, by the kernel's notice instead of by asking. */
export type PidFileWaiter = {
  /** Resolves with the number in a file, or with null once `ended` did and there is none. */
  wait(path: string, ended: Promise<unknown>): Promise<number | null>
}

/** Watches the folder only while somebody waits. */
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

/** A number only when the file holds all of it: runtimes create the file first and write it after. */
function readPid(path: string): number | null {
  try {
    const text = readFileSync(path, 'utf8').trim()
    return /^\d+$/.test(text) ? Number(text) : null
  } catch {
    return null // not there yet
  }
}

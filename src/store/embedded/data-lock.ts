import {
  chmodSync,
  closeSync,
  existsSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
  type Stats,
} from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { explainFullDisk } from './full-disk.ts'

/** Thrown when another process uses the data folder. The message describes that process. */
export class DataFolderInUse extends Error {}

/** The exclusive right to use a data folder. It lasts until it is disposed or the process ends, however it ends. */
export type DataFolderLock = Disposable

const OWNER_ONLY = 0o600
/** SQLITE_BUSY (sqlite.org/rescode.html): another process has the lock. */
const SQLITE_BUSY = 5

/**
 * Locks a data folder for this process. Throws `DataFolderInUse` if another process has locked it.
 *
 * The lock is a kernel lock (fcntl), which ends with its process, even by kill -9. It doesn't depend on process ids.
 * Therefore neither a reused id nor a second container can be mistaken for the owner. Node has no function for kernel
 * locks. SQLite, which comes with Node, locks its database file in this way, so this function opens an empty SQLite
 * database.
 */
export function lockDataFolder(dataDir: string): DataFolderLock {
  const path = join(dataDir, 'lock')
  // SQLite would create the file with the mode of the umask. Whoever can open the file could hold the lock.
  closeSync(openSync(path, 'a', OWNER_ONLY))
  chmodSync(path, OWNER_ONLY)
  const file = new DatabaseSync(path)
  const ownerPath = join(dataDir, 'lock.pid')
  try {
    file.exec('pragma locking_mode = exclusive; begin exclusive')
  } catch (cause) {
    file.close()
    if (!isBusy(cause))
      throw explainFullDisk(new Error(`the data folder ${dataDir} can't be locked`, { cause }), dataDir)
    throw new DataFolderInUse(
      `the data folder ${dataDir} is in use by process ${ownerOf(ownerPath)}: stop that one, or choose another folder`,
      { cause },
    )
  }
  try {
    writeFileSync(ownerPath, `${String(process.pid)}\n`, { mode: OWNER_ONLY })
  } catch (error) {
    file.close()
    throw explainFullDisk(error, dataDir)
  }
  return {
    [Symbol.dispose]() {
      if (!file.isOpen) return
      rmSync(ownerPath, { force: true })
      file.close()
    },
  }
}

/**
 * Finds the process that has locked a data folder. Returns null if no process that is visible here has the lock's file open: then
 * nobody has locked the folder, or a process in another container has.
 */
export function findDataFolderOwner(dataDir: string): number | null {
  const pid = Number(existsSync(join(dataDir, 'lock.pid')) ? ownerOf(join(dataDir, 'lock.pid')) : '')
  return Number.isSafeInteger(pid) && pid > 1 && pid !== process.pid && holdsDataFolder(pid, dataDir) ? pid : null
}

/** Whether a process has the lock's file of a data folder open. */
export function holdsDataFolder(pid: number, dataDir: string): boolean {
  try {
    const lock = statSync(join(dataDir, 'lock'))
    const folder = `/proc/${String(pid)}/fd`
    return readdirSync(folder).some((name) => isFile(join(folder, name), lock))
  } catch {
    return false // the process has ended
  }
}

/** Whether a path leads to a file, by whatever name: a data folder may have several paths. */
function isFile(path: string, { ino, dev }: Pick<Stats, 'ino' | 'dev'>): boolean {
  const found = statSync(path, { throwIfNoEntry: false }) // undefined: the descriptor was closed
  return found?.ino === ino && found.dev === dev
}

/** Describes the owner, for the error message only. The owner may be in another container, or may just be starting. */
function ownerOf(ownerPath: string): string {
  try {
    return readFileSync(ownerPath, 'utf8').trim()
  } catch (error) {
    return `(unknown: ${error instanceof Error ? error.message : String(error)})`
  }
}

function isBusy(error: unknown): boolean {
  return error instanceof Error && 'errcode' in error && error.errcode === SQLITE_BUSY
}

import { existsSync } from 'node:fs'
import { chmod, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { errorCodeOf } from '../../lib/error-code.ts'
import { makeFolders, readFileOrNull } from '../../lib/files.ts'
import type { Random } from '../../lib/random.ts'
import { readOrCreateFile } from '../../lib/read-or-create.ts'

/** The folder for persistent data, with the installation's keys and names that it contains. */
export type DataFolder = {
  readonly path: string
  /** The key that encrypts secrets in database tables: 32 bytes. */
  readonly sealingKey: Buffer
  /** The credential of the worker of `up`. */
  readonly workerCredential: string
  /**
   * The installation's id. It distinguishes the devices, namespaces, mounts and cgroups of this installation from those of
   * others on the machine: 6 characters of a-z and 0-9.
   */
  readonly namePrefix: string
}

/** Everything that Sandyard makes in a data folder. `sandyard uninstall` deletes these and nothing else. */
export const DATA_FOLDER_ENTRIES = [
  'backup',
  'backup-links',
  'database',
  'database-owner.url',
  'database.url',
  'images',
  'kubernetes',
  'lease.json',
  'lease.json.watch',
  'life.json',
  'lock',
  'lock-journal',
  'lock.pid',
  'logs',
  'metrics',
  'name-prefix',
  'network',
  'restore.incomplete',
  'runtime',
  'sandboxes',
  'sealing.key',
  'sign-in.html',
  'tls-certificate.pem',
  'vm',
  'volumes',
  'worker',
  'worker.credential',
  'worker.json',
] as const

/** The folder that the worker of `up` locks while its process lives. */
export function localWorkerFolder(dataDir: string): string {
  return join(dataDir, 'worker')
}

/** A file that is in a data folder while `sandyard restore` fills it. */
export const INCOMPLETE_RESTORE = 'restore.incomplete'

/** The files of which a data folder has at least one: of a server or worker, or of a restore that is not complete. */
const MARKS = ['name-prefix', 'database/lock', INCOMPLETE_RESTORE] as const

/** Whether a server, a worker or a restore of Sandyard has used this folder. */
export function isDataFolder(path: string): boolean {
  return MARKS.some((name) => existsSync(join(path, name)))
}

/** Reads the id of an installation from its data folder. Null if no server or worker has used the folder yet. */
export async function readInstallationId(path: string): Promise<string | null> {
  return readFileOrNull(join(path, 'name-prefix'))
}

/** Opens the data folder as `fillDataFolder` does. Rejects for a folder that a restore left incomplete. */
export async function openDataFolder(path: string, random: Random, sealingKey: string | null): Promise<DataFolder> {
  if (existsSync(join(path, INCOMPLETE_RESTORE)))
    throw new Error(`the restore into ${path} is not complete: delete the folder and restore again`)
  return fillDataFolder(path, random, sealingKey)
}

/** Creates the missing files of a data folder, which only their owner can read, and reads them. May be repeated. */
export async function fillDataFolder(path: string, random: Random, sealingKey: string | null): Promise<DataFolder> {
  await ensureDataFolder(path)
  if ((await readInstallationId(path)) === null) await forgetMachine(path)
  const stored = async (name: string, make: () => string): Promise<string> => {
    try {
      return await readOrCreateFile(join(path, name), random, make)
    } catch (error) {
      throw describeFolderError(error, path)
    }
  }
  return {
    path,
    sealingKey: Buffer.from(
      sealingKey ?? (await stored('sealing.key', () => random.bytes(32).toString('base64'))),
      'base64',
    ),
    workerCredential: await stored('worker.credential', () => random.bytes(32).toString('base64url')),
    namePrefix: await stored('name-prefix', () => namePrefix(random)),
  }
}

/**
 * Deletes what refers to containers and networks on this machine. An installation that gets an id has none yet: these files then
 * came with a copy of another installation's folder.
 */
async function forgetMachine(path: string): Promise<void> {
  for (const name of ['runtime', 'network']) await rm(join(path, name), { recursive: true, force: true })
}

/** Creates the folder if it is missing. May be repeated. */
export async function ensureDataFolder(path: string): Promise<void> {
  try {
    await makeFolders(path)
    await chmod(path, 0o711) // the database's user must be able to enter the folder
  } catch (error) {
    throw describeFolderError(error, path)
  }
}

const OTHER_FOLDER = 'choose another folder with --data-dir or SANDYARD_DATA_DIR'

/** The remedy for each error of the operating system about a folder. */
const REMEDIES: Readonly<Record<string, string>> = {
  EACCES: `this user may not write there: start as root, or ${OTHER_FOLDER}`,
  EPERM: `this user may not write there: start as root, or ${OTHER_FOLDER}`,
  EROFS: `its file system is read-only: mount it writable, or ${OTHER_FOLDER}`,
  ENOSPC: `its file system is full: free some space, or ${OTHER_FOLDER}`,
  EDQUOT: `the disk quota of this user is used up: free some space, or ${OTHER_FOLDER}`,
  ENOENT: `a link in its path leads nowhere, or its file system takes no folders: mount or make what the link leads to, or ${OTHER_FOLDER}`,
  ENOTDIR: `a part of the path is a link that leads nowhere, or a file: ${OTHER_FOLDER}`,
  EEXIST: `it is a file: ${OTHER_FOLDER}`,
}

/** Describes why a data folder can't be made or written, with the remedy. */
export function describeFolderError(error: unknown, path: string): Error {
  const remedy = REMEDIES[errorCodeOf(error) ?? '']
  return new Error(`the data folder ${path} can't be used${remedy === undefined ? '' : `: ${remedy}`}`, {
    cause: error,
  })
}

function namePrefix(random: Random): string {
  return [...random.bytes(6)].map((byte) => (byte % 36).toString(36)).join('')
}

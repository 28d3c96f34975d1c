/**
 * The one path by which an installation reaches its data folder: a bind mount at `/run/sandyard/<id>`. It is short, has no special
 * characters, and every user of the host may pass its parent folders, whatever the folder's own path is. Overlays, sockets and
 * the user of the embedded PostgreSQL need that. It stays the same when the folder moves, so paths that a runtime or a running
 * sandbox keeps stay valid.
 */
import { chmod, mkdir, open, readFile, realpath, rmdir, stat, type FileHandle } from 'node:fs/promises'
import { join, relative } from 'node:path'
import { hasErrorCode } from '../../lib/error-code.ts'
import { systemClock } from '../../lib/clock.ts'
import { localCommands } from '../../lib/run-command.ts'
import { mount, mountFolderOf, mountPointsBelow, ociKey, RUN_FOLDER } from '../../worker/mounts.ts'
import { pidsBelow } from '../../worker/drivers/oci/cgroups/cgroup-files.ts'
import { cgroupFolderOf, cgroupParentOf } from '../../worker/drivers/oci/cgroups/open-cgroups.ts'
import { readMounts } from '../../worker/processes/mountinfo.ts'

import type { DataFolder } from './data-folder.ts'

/** The path at which to use a data folder until it is disposed. The last process that uses the folder unmounts it. */
export type DataMount = { readonly path: string } & AsyncDisposable

const UNMOUNT_TIMEOUT_MS = 20_000
/** How often to retry an unmount, because a process that just ended may still use the folder. */
const UNMOUNT_TRIES = 10
const UNMOUNT_PAUSE_MS = 20

/**
 * Mounts a data folder. Without the right to mount, `path` is the folder itself. Throws if a copy of the folder, which has the same
 * id, is in use on this machine.
 */
export async function mountDataFolder({
  path,
  namePrefix,
}: Pick<DataFolder, 'path' | 'namePrefix'>): Promise<DataMount> {
  if (!(await mayMount())) return { path, [Symbol.asyncDispose]: () => Promise.resolve() }
  const point = mountFolderOf(namePrefix)
  const folder = await realpath(path)
  if (!(await isMounted(point))) await refuseForeignSandboxes(folder, namePrefix)
  const handle = await openMount(folder, point)
  return {
    path: point,
    async [Symbol.asyncDispose]() {
      await handle.close()
      await unmount(point)
    },
  }
}

/**
 * Throws if sandboxes with this id run although their data folder is mounted nowhere here: sandboxes keep the mount, so these belong
 * to a copy of the folder in another container, which has mounts of its own and shares the cgroups.
 */
async function refuseForeignSandboxes(folder: string, id: string): Promise<void> {
  if ((await pidsBelow(cgroupFolderOf(cgroupParentOf(ociKey(id))))).length === 0) return
  throw new Error(
    `sandboxes of an installation with the id of ${folder} run on this machine, and not from this folder. If it is a copy that ` +
      'another container uses too, delete the file name-prefix in it, and it gets a new id. Otherwise end these sandboxes first',
  )
}

/** Mounts the folder unless it is mounted. An open handle keeps other processes from unmounting it. */
async function openMount(folder: string, point: string): Promise<FileHandle> {
  for (;;) {
    if (!(await isMounted(point))) await bind(folder, point)
    const handle = await open(point)
    if (await isSameFolder(handle, folder)) return handle
    await handle.close()
    // Another process unmounted it just now, or another folder is mounted there.
    if (!(await isMounted(point))) continue
    const other = await describeMounted(point)
    if (!(await unmount(point)))
      throw new Error(
        `${folder} has the same id as ${other}, which is in use on this machine. If one is a copy of the other, delete the ` +
          `file name-prefix in the copy, and the copy gets a new id. If the folder was moved to another file system, first ` +
          'stop its server and sandboxes by `sandyard down --data-dir` with the earlier path',
      )
  }
}

async function bind(folder: string, point: string): Promise<void> {
  await mkdir(point, { recursive: true })
  for (const one of [RUN_FOLDER, point]) await chmod(one, 0o711)
  // Recursive, because a part of the folder may be on a file system of its own. Slaves, so that an unmount here unmounts nothing
  // in the folder itself.
  await mount(localCommands, ['--rbind', '--make-rslave', folder, point])
  const count = (await mountPointsBelow(point)).filter((one) => one === point).length
  if (count === 1) return
  await unmount(point)
  throw new Error(`another process mounted a folder with the same id at the same time as ${folder}: start again`)
}

async function isMounted(point: string): Promise<boolean> {
  return (await mountPointsBelow(point)).includes(point)
}

async function isSameFolder(handle: FileHandle, folder: string): Promise<boolean> {
  const [mounted, wanted] = [await handle.stat(), await stat(folder)]
  return mounted.ino === wanted.ino && mounted.dev === wanted.dev
}

/** Unmounts a folder unless something uses it. Resolves with whether it is unmounted. */
async function unmount(point: string): Promise<boolean> {
  for (let tries = 1; await isMounted(point); tries++) {
    if (tries > 1) await systemClock.sleep(UNMOUNT_PAUSE_MS)
    if (tries > UNMOUNT_TRIES) return false
    await localCommands.attempt('umount', ['--recursive', point], { timeoutMs: UNMOUNT_TIMEOUT_MS })
  }
  try {
    await rmdir(point)
  } catch (error) {
    if (!hasErrorCode(error, 'ENOENT', 'ENOTEMPTY', 'EBUSY')) throw error
  }
  return true
}

/** Describes which folder is mounted at a point, by its path on this machine. */
async function describeMounted(point: string): Promise<string> {
  const mounts = await readMounts('self')
  const own = mounts.find((one) => one.point === point)
  const isAbove = (root: string): boolean => root === '/' || own?.root.startsWith(`${root}/`) === true
  const above = mounts.find((one) => one.device === own?.device && one.point !== point && isAbove(one.root))
  if (own === undefined || above === undefined) return 'another folder'
  return join(above.point, relative(above.root, own.root))
}

/** Whether this process has CAP_SYS_ADMIN, which mounting needs. */
async function mayMount(): Promise<boolean> {
  if (process.platform !== 'linux') return false
  const rights = /^CapEff:\s*([0-9a-f]+)$/m.exec(await readFile('/proc/self/status', 'utf8'))?.[1] ?? '0'
  return (BigInt(`0x${rights}`) >> CAP_SYS_ADMIN) % 2n === 1n
}

const CAP_SYS_ADMIN = 21n // linux/capability.h

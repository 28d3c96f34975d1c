import { existsSync } from 'node:fs'
import { copyFile, link, mkdir, readdir, readFile, rm } from 'node:fs/promises'
import { basename, join } from 'node:path'
import type { Config } from '../../config.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import { statOrNull } from '../../lib/files.ts'
import { readMounts } from '../../worker/processes/mountinfo.ts'
import { ociFolder } from '../worker/worker-storage.ts'
import { readArchive } from './archives.ts'
import { freezeMount } from './frozen-mount.ts'
import { diskLinksFolder } from '../worker/backup-leftovers.ts'
import type { Stored, StoredArchive } from './manifest.ts'

/** The disks of all sandboxes. They stay readable if their sandboxes are deleted meanwhile. */
export type HeldDisks = { readonly ids: readonly string[]; readonly dir: string } & AsyncDisposable

/** How long writes to a disk may wait for the backup. */
const FREEZE_LIMIT_SECS = 60
/** How often a disk is read again because its sandbox started or stopped meanwhile. */
const TRIES = 5

/** The folder of a sandbox's disk within the data folder. */
export function disksFolder(config: Config): string {
  return join(ociFolder(config), 'disks', 'kept')
}

/** The folder of the snapshots of disks within the data folder. */
export function snapshotsFolder(config: Config): string {
  return join(ociFolder(config), 'disks', 'snapshots')
}

/** Holds the disks by hard links in a folder of the same file system, which disposing deletes. */
export async function holdDisks(config: Config): Promise<HeldDisks> {
  const dir = diskLinksFolder(config)
  await rm(dir, { recursive: true, force: true }) // a killed backup left it
  const kept = disksFolder(config)
  const names = existsSync(kept) ? await readdir(kept) : []
  const ids: string[] = []
  for (const id of names) {
    if (!existsSync(join(kept, id, 'ready'))) continue // its first start has not finished, and will begin anew
    await mkdir(join(dir, id), { recursive: true, mode: 0o700 })
    try {
      await link(join(kept, id, 'disk.img'), join(dir, id, 'disk.img'))
      for (const name of ['image.json', 'ready']) await copyFile(join(kept, id, name), join(dir, id, name))
      ids.push(id)
    } catch (error) {
      if (!hasErrorCode(error, 'ENOENT')) throw error // the sandbox was deleted
      await rm(join(dir, id), { recursive: true })
    }
  }
  return { ids, dir, [Symbol.asyncDispose]: () => rm(dir, { recursive: true, force: true }) }
}

/**
 * Stores the disk of a sandbox. The disk of a running one is read twice: first while the sandbox writes, so that most
 * chunks are stored, and then frozen. Rejects if the second time takes longer than the limit.
 */
export async function takeDisk(
  { dir, id }: { readonly dir: string; readonly id: string },
  store: (stream: AsyncIterable<Uint8Array>) => Promise<Stored>,
): Promise<Stored & Pick<StoredArchive, 'note'>> {
  const source = { dir, paths: [id] }
  for (let tries = 1; tries <= TRIES; tries++) {
    const first = await findMount(join(dir, id, 'disk.img'))
    const stored = await store(readArchive(source, { isChanging: first !== null }))
    const point = await findMount(join(dir, id, 'disk.img'))
    if (point === null && first === null) return { ...stored, note: null }
    if (point === null) continue
    const frozen = await freezeMount(point, FREEZE_LIMIT_SECS)
    try {
      const exact = await store(readArchive(source, { isChanging: false, signal: frozen.over }))
      if (await frozen.thaw()) return { ...exact, note: 'it ran' }
    } finally {
      await frozen.thaw()
    }
    frozen.over.throwIfAborted()
  }
  throw new Error('its sandbox started and stopped too often')
}

/** Finds where the file system in a disk's file is mounted. Null: nowhere. */
async function findMount(path: string): Promise<string | null> {
  const inode = await identityOf(path)
  for (const { source, point } of await readMounts('self')) {
    if (!source.startsWith('/dev/loop')) continue
    const backing = await readFile(`/sys/block/${basename(source)}/loop/backing_file`, 'utf8').catch(() => '')
    if (backing !== '' && (await identityOf(backing.trimEnd())) === inode) return point
  }
  return null
}

/** Identifies a file by device and inode, because the loop device knows it by another link. Null: it is gone. */
async function identityOf(path: string): Promise<string | null> {
  const found = await statOrNull(path)
  return found === null ? null : `${String(found.dev)}:${String(found.ino)}`
}

import { execFile } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { promisify } from 'node:util'
import type { DesiredVolume } from '../../src/contract/workers/worker-protocol.ts'
import { asId, type OrgId, type VolumeId } from '../../src/domain/ids.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { localCommands } from '../../src/lib/run-command.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { makeUuids } from '../../src/lib/uuid.ts'
import { mountFolderOf, unmountBelow } from '../../src/worker/mounts.ts'
import { folderHash } from './folder-hash.ts'
import { openFolderStorage } from '../../src/worker/volumes/folder-storage.ts'
import { NO_DISK_RESERVE, type DiskReserve } from '../../src/worker/disk-reserve.ts'
import { openVolumeStorage, type StorageSettings } from '../../src/worker/volumes/open-volume-storage.ts'
import type { VolumeStorage } from '../../src/worker/volumes/volume-storage.ts'

export const TEST_UID_SHIFT = 100_000
const uuids = makeUuids(systemClock, systemRandom)

/** A volume without caps, in an organization of its own unless one is given. */
export function newVolume(wanted: Partial<DesiredVolume> = {}): DesiredVolume {
  return {
    org_id: asId<OrgId>(uuids.next()),
    volume_id: asId<VolumeId>(uuids.next()),
    capacity_bytes: null,
    org_capacity_bytes: null,
    ...wanted,
  }
}

/** A folder in which volume storages can be opened. */
export type StorageFixture = {
  readonly dir: string
  readonly key: string
  /** Opens the storage in the folder as a starting worker does. It may be open several times. */
  open(plan?: Partial<StorageSettings>): Promise<VolumeStorage>
  /** Closes all storages, unmounts and deletes everything. */
  remove(): Promise<void>
}

/** Makes a fixture whose volume pool has 1 GiB, unless the settings of `open` differ, with a reserve of its disk. */
export function makeStorageFixture(
  parent = tmpdir(),
  reserve: Pick<DiskReserve, 'freeMib'> = NO_DISK_RESERVE,
): StorageFixture {
  const dir = join(mkdtempSync(join(parent, 'sandyard-volumes-')), 'volumes')
  const opened: VolumeStorage[] = []
  const key = `${folderHash(dir)}-volumes`
  return {
    dir,
    key,
    async open(plan = {}) {
      const storage = await openVolumeStorage(
        { dir, key, sharedDir: null, volumePoolGib: 1, ...plan },
        { uidShift: TEST_UID_SHIFT, reserve, clock: systemClock, log: makeLog('silent') },
      )
      opened.push(storage)
      return storage
    },
    async remove() {
      await Promise.allSettled(opened.map((storage) => storage.close()))
      await unmountBelow(mountFolderOf(key), { clock: systemClock, commands: localCommands })
      for (const path of [join(dir, '..'), mountFolderOf(key)])
        if (existsSync(path)) rmSync(path, { recursive: true, force: true })
    },
  }
}

/**
 * Opens a storage with plain folders in a temporary folder, for tests of its callers. The second result deletes the
 * folder.
 */
export async function makeFolderStorage(): Promise<readonly [VolumeStorage, () => void]> {
  const root = mkdtempSync(join(tmpdir(), 'sandyard-folders-'))
  const storage = await openFolderStorage({ root, uidShift: TEST_UID_SHIFT, isShared: false, whyNoCaps: 'a test' })
  return [storage, () => rmSync(root, { recursive: true, force: true })]
}

/**
 * Writes up to `mib` MiB of zeros to a file as a user of sandboxes. Stops when the file system refuses more. Resolves
 * with the number of written bytes.
 */
export async function fillFile(path: string, mib: number): Promise<number> {
  const own = ['--reuid', String(TEST_UID_SHIFT), '--regid', String(TEST_UID_SHIFT), '--clear-groups']
  const script = 'dd if=/dev/zero of="$0" bs=1M count="$1" conv=notrunc,fsync 2>&1; stat -c "size %s" "$0"'
  const { stdout } = await promisify(execFile)('setpriv', [...own, 'sh', '-c', script, basename(path), String(mib)], {
    cwd: dirname(path), // the user can't enter the folders above the volume
    timeout: 60_000,
  })
  return Number(/^size (\d+)$/m.exec(stdout)?.[1])
}

import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmdirSync, rmSync, statSync, writeFileSync } from 'node:fs' // prettier-ignore
import { open } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { DesiredVolume } from '../../../src/contract/workers/worker-protocol.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { makeBtrfs } from '../../../src/worker/volumes/btrfs-commands.ts'
import { whyNoVolumePool } from '../../../src/worker/volumes/open-volume-storage.ts'
import { makeVolumeFiles } from '../../../src/worker/volumes/volume-files.ts'
import { takeVolumeSnapshots } from '../../../src/worker/volumes/volume-snapshots.ts'
import type { VolumeStorage } from '../../../src/worker/volumes/volume-storage.ts'
import { fillFile, makeStorageFixture, newVolume, TEST_UID_SHIFT, type StorageFixture } from '../../support/volume-storage.ts' // prettier-ignore

const MIB = 1024 * 1024
const flaw = await whyNoVolumePool()

describe('folders with limits in volumes of a pool', { skip: flaw ?? false }, () => {
  let fixture: StorageFixture
  let storage: VolumeStorage
  before(async () => {
    fixture = makeStorageFixture()
    storage = await fixture.open()
  })
  after(() => fixture.remove())

  test('a new limited folder belongs to user 0 of the sandboxes', async () => {
    const volume = newVolume()
    await storage.open(volume)
    const { uid, gid, mode } = statSync(await limit(volume, 'new/folder', 8))
    assert.deepEqual([uid, gid, mode & 0o7777], [TEST_UID_SHIFT, TEST_UID_SHIFT, 0o755])
  })

  test('a folder with files keeps them, with all that they have, when it gets a limit', async () => {
    const volume = newVolume({ capacity_bytes: 12 * MIB })
    const root = await storage.open(volume)
    const folder = join(root, 'folder')
    mkdirSync(join(folder, 'inner'), { recursive: true })
    writeFileSync(join(folder, 'inner/file'), Buffer.alloc(7 * MIB, 1))
    execFileSync('sh', ['-c', 'ln inner/file link; ln -s inner/file soft; mkfifo fifo; chmod 4750 inner/file; chown -h 101000:101001 . inner/file; chmod 1777 .'], { cwd: folder }) // prettier-ignore
    const list = (): string => execFileSync('find', ['.', '-printf', '%p %M %u %g %s %n %l %T@\n'], { cwd: folder, encoding: 'utf8' }).split('\n').toSorted().join('\n') // prettier-ignore
    const before = list()
    await limit(volume, 'folder', 8)
    assert.equal(list(), before)
    assert.ok(readFileSync(join(folder, 'soft')).equals(Buffer.alloc(7 * MIB, 1)))
    assert.deepEqual(readdirSync(root), ['folder'])
    assert.ok((await fillFile(join(folder, 'more'), 8)) <= MIB)
    assert.ok((await fillFile(join(root, 'other'), 8)) > 3 * MIB)
    const used = (await storage.measure()).find(({ volume_id }) => volume_id === volume.volume_id)?.used_bytes ?? 0
    assert.ok(used <= 12 * MIB, String(used))
  })

  test('a folder gets its first limit only while nobody changes the volume', async () => {
    const volume = newVolume()
    const root = await storage.open(volume)
    mkdirSync(join(root, 'folder/with/files'), { recursive: true })
    mkdirSync(join(root, 'beside'))
    const { promise: changed, resolve: finish } = Promise.withResolvers<void>()
    const changing = storage.folderLimits?.using(volume, () => changed)
    await assert.rejects(limit(volume, 'folder', 8), /in use: try again/)
    finish()
    await changing
    for (const [path, isRefused] of [
      ['folder', true],
      ['folder/with/files', true],
      ['', true],
      ['beside', false],
    ] as const) {
      // prettier-ignore
      const pin = join(fixture.dir, 'pin')
      mkdirSync(pin)
      execFileSync('mount', ['--bind', join(root, path), pin])
      const limited = limit(volume, 'folder', 8)
      await (isRefused ? assert.rejects(limited, /only while no sandbox has mounted it/) : limited)
      execFileSync('umount', [pin])
      rmdirSync(pin)
    }
    assert.ok(existsSync(join(root, 'folder/with/files')))
    await assert.rejects(limit(volume, 'folder/with', 8), /in a folder with a quota/)
    renameSync(join(root, 'folder'), join(root, 'beside/folder'))
    await assert.rejects(limit(volume, 'beside', 8), /contains a folder with a quota/)
  })

  test('a volume has its cap, its usage and its clean-up with limited folders', async () => {
    const volume = newVolume({ capacity_bytes: 16 * MIB, org_capacity_bytes: 64 * MIB })
    const root = await storage.open(volume)
    writeFileSync(join(root, 'before'), Buffer.alloc(4 * MIB, 1))
    const folder = await limit(volume, 'folder', 64)
    assert.ok((await fillFile(join(folder, 'file'), 64)) <= 12 * MIB)
    await storage.applyCaps({ ...volume, capacity_bytes: 24 * MIB, org_capacity_bytes: 20 * MIB })
    assert.ok((await fillFile(join(folder, 'more'), 64)) <= 4 * MIB)
    const used = (await storage.measure()).find(({ volume_id }) => volume_id === volume.volume_id)?.used_bytes ?? 0
    assert.ok(used > 19 * MIB && used <= 20 * MIB, String(used))
    const btrfs = makeBtrfs(storage.root)
    const id = await btrfs.subvolumeIdOf(root)
    await storage.remove(volume)
    assert.ok(!existsSync(root))
    await storage.measure()
    assert.ok(!(await btrfs.groups({ isSynced: true })).has(`1/${String(id)}`))
  })

  test('the name of a folder is never taken for another volume', async () => {
    const [volume, victim] = [newVolume(), newVolume()]
    const [root, kept] = [await storage.open(volume), await storage.open(victim)]
    writeFileSync(join(kept, 'file'), 'kept')
    await limit(volume, 'folder', 8)
    const id = await makeBtrfs(storage.root).subvolumeIdOf(join(root, 'folder'))
    // `btrfs subvolume list` would print a line for the victim, with the id of the folder.
    const parent = join(root, `x\nID ${String(id)} gen 9 top level 5 path ${victim.org_id}`)
    mkdirSync(parent)
    renameSync(join(root, 'folder'), join(parent, victim.volume_id))
    await storage.applyCaps({ ...victim, capacity_bytes: 8 * MIB })
    assert.ok((await fillFile(join(kept, 'large'), 16)) <= 8 * MIB)
    await storage.remove(volume)
    assert.equal(readFileSync(join(kept, 'file'), 'utf8'), 'kept')
  })

  test('a backup has the content of limited folders, and limits hold meanwhile and afterwards', async () => {
    const volume = newVolume({ capacity_bytes: 32 * MIB })
    await storage.open(volume)
    const folder = await limit(volume, 'a/b \n\xff/folder', 16)
    assert.equal(await fillFile(join(folder, 'file'), 4), 4 * MIB)
    await fillFile(join(await storage.open(volume), 'rest'), 64) // nothing is left of the cap
    {
      await using snapshots = await takeVolumeSnapshots(storage.root)
      assert.deepEqual(snapshots.leftOut, [])
      const taken = snapshots.volumes.find(({ volume_id }) => volume_id === volume.volume_id)?.dir ?? ''
      assert.equal(statSync(join(taken, 'a/b \n\xff/folder/file')).size, 4 * MIB)
      assert.ok((await fillFile(join(folder, 'file'), 64)) <= 4 * MIB)
    }
    rmSync(join(await storage.open(volume), 'rest'))
    assert.ok(!existsSync(join(storage.root, 'backup')))
    assert.ok((await fillFile(join(folder, 'during'), 64)) <= 12 * MIB)
    assert.ok((await fillFile(join(folder, '..', 'file'), 64)) <= 16 * MIB)
  })

  test('clients copy into a limited folder up to its limit, and delete it with the folder above', async () => {
    const volume = newVolume()
    const root = await storage.open(volume)
    const files = makeVolumeFiles({ root, uidShift: TEST_UID_SHIFT, random: systemRandom })
    await limit(volume, 'a/folder', 4)
    for (const [name, mib] of [
      ['large', 8],
      ['small', 2],
    ] as const)
      writeFileSync(join(root, name), Buffer.alloc(mib * MIB, 1))
    await assert.rejects(files.copy('large', 'a/folder/large'), { code: 'quota_exceeded' })
    await files.copy('small', 'a/folder/small')
    await assert.rejects(files.rename('small', 'a/folder/moved'), { code: 'volume_file_conflict' })
    await files.remove('a', { isRecursive: true })
    assert.equal(await files.exists('a'), false)
  })

  /** Limits a folder as the start of a sandbox does. Returns its path. */
  async function limit(volume: DesiredVolume, path: string, mib: number): Promise<string> {
    const limits = storage.folderLimits
    assert.ok(limits !== null)
    const root = await storage.open(volume)
    await limits.prepare(volume, root, { names: path.split('/'), path })
    const held = await open(join(root, path), 'r')
    await limits.set(volume, held, { bytes: mib * MIB, path })
    await held.close()
    return join(root, path)
  }
})

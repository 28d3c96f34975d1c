import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { chooseStorage, openVolumeStorage } from '../../../src/worker/volumes/open-volume-storage.ts'
import { NO_DISK_RESERVE } from '../../../src/worker/disk-reserve.ts'
import type { VolumeStorage } from '../../../src/worker/volumes/volume-storage.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import type { Log } from '../../../src/lib/log.ts'
import { makeStorageFixture, newVolume, TEST_UID_SHIFT, type StorageFixture } from '../../support/volume-storage.ts'

const isRoot = process.getuid?.() === 0

let fixture: StorageFixture
let storage: VolumeStorage
before(async () => {
  fixture = makeStorageFixture()
  storage = await fixture.open({ sharedDir: join(fixture.dir, 'shared') })
})
after(() => fixture.remove())

test('the report of a shared folder says that every worker sees its volumes, and that no cap is enforced', () => {
  assert.equal(storage.report.is_shared, true)
  assert.equal(storage.report.enforces_caps, false)
  assert.match(storage.report.how, /shared.*quotas/)
})

test('a cap is refused in plain folders with the reason, and nothing is created', async () => {
  for (const caps of [{ capacity_bytes: 1 }, { org_capacity_bytes: 1 }]) {
    const volume = newVolume(caps)
    await assert.rejects(
      storage.open(volume),
      /can't be enforced here: the quotas of a file system that machines share/,
    )
    await assert.rejects(storage.applyCaps(volume), /can't be enforced here/)
    assert.ok(!existsSync(join(fixture.dir, 'shared', volume.org_id)))
  }
  await storage.applyCaps(newVolume())
})

test('a plain folder belongs to user 0 of the sandboxes, is measured, and is removed with its contents', async () => {
  const volume = newVolume()
  const path = await storage.open(volume)
  if (isRoot) assert.equal(statSync(path).uid, TEST_UID_SHIFT)
  assert.equal(statSync(path).mode & 0o7777, 0o755)
  mkdirSync(join(path, 'a'))
  writeFileSync(join(path, 'a/file'), Buffer.alloc(1024 * 1024, 1))
  const { org_id, volume_id } = volume
  const [measured, ...others] = await storage.measure()
  assert.deepEqual([measured?.org_id, measured?.volume_id, others], [org_id, volume_id, []])
  assert.ok(Math.abs((measured?.used_bytes ?? 0) - 1024 * 1024) < 64 * 1024)
  await storage.remove(volume)
  await storage.remove(volume)
  assert.deepEqual(await storage.measure(), [])
})

test('a volume is removed however deep a sandbox nested folders in it', async () => {
  const volume = newVolume()
  const nest = 'chdir shift; for (1 .. 20_000) { mkdir "d" and chdir "d" or die $! }'
  execFileSync('perl', ['-e', nest, await storage.open(volume)])
  await storage.remove(volume)
  assert.deepEqual(await storage.measure(), [])
})

test('a machine with volumes in plain folders keeps using them, even if it could have a pool', async () => {
  const plan = { dir: join(fixture.dir, 'plain'), sharedDir: null, volumePoolGib: null }
  mkdirSync(join(plan.dir, 'folders', newVolume().org_id), { recursive: true })
  const choice = await chooseStorage(plan)
  assert.ok(choice.kind === 'folders' && !choice.isShared && /already/.test(choice.whyNoCaps))
})

test('a folder with files that is not a volume is named in the log', async () => {
  const dir = join(fixture.dir, 'stray')
  mkdirSync(join(dir, 'folders', newVolume().org_id), { recursive: true })
  const { org_id } = newVolume()
  mkdirSync(join(dir, org_id))
  const warned: object[] = []
  const write = (): void => undefined
  const log: Log = { debug: write, info: write, error: write, warn: (fields) => warned.push(fields), child: () => log }
  const deps = { uidShift: TEST_UID_SHIFT, reserve: NO_DISK_RESERVE, clock: systemClock, log }
  const plan = { dir, key: 'unused', sharedDir: null, volumePoolGib: null }
  await openVolumeStorage(plan, deps)
  assert.deepEqual(warned, [])
  writeFileSync(join(dir, org_id, 'file'), '')
  await openVolumeStorage(plan, deps)
  assert.deepEqual(warned, [{ folder: join(dir, org_id) }])
})

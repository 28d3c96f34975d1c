import assert from 'node:assert/strict'
import { rmSync, statfsSync } from 'node:fs'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { makeDiskReserve } from '../../../src/worker/disk-reserve.ts'
import { whyNoVolumePool } from '../../../src/worker/volumes/open-volume-storage.ts'
import { poolAllowance } from '../../../src/worker/volumes/pool-growth.ts'
import { mountSmallDisk, whyNoSmallDisk } from '../../support/small-disk.ts'
import { fillFile, makeStorageFixture, newVolume } from '../../support/volume-storage.ts'
import { waitUntil } from '../../support/wait.ts'

const MIB = 1024 * 1024
const GIB = 1024 * MIB
const RESERVE_MIB = 60

test('volumes may take half of the free space at once', () => {
  const pool = { usedBytes: GIB, takenBytes: GIB, poolFreeBytes: 1_000 * GIB, spareBytes: 4 * GIB }
  assert.deepEqual(poolAllowance(pool), { owedBytes: 0, allowedBytes: 2 * GIB })
  assert.deepEqual(poolAllowance({ ...pool, spareBytes: 0 }), { owedBytes: 0, allowedBytes: 0 })
})

test('a pool smaller than its share is not limited, and space that is promised already counts as taken', () => {
  const pool = { usedBytes: 3 * GIB, takenBytes: GIB, poolFreeBytes: 1_000 * GIB, spareBytes: 6 * GIB }
  assert.deepEqual(poolAllowance(pool), { owedBytes: 2 * GIB, allowedBytes: 2 * GIB })
  assert.deepEqual(poolAllowance({ ...pool, poolFreeBytes: GIB }), { owedBytes: 2 * GIB, allowedBytes: null })
})

describe('a volume pool on a disk that is smaller', { skip: (await whyNoVolumePool()) ?? whyNoSmallDisk() }, () => {
  test('writes fail before the pool takes the reserve, nothing that was written is lost, and freed space can be used', async (t) => {
    const disk = mountSmallDisk(500)
    const fixture = makeStorageFixture(disk.folder, makeDiskReserve(disk.folder, RESERVE_MIB))
    t.after(async () => {
      await fixture.remove()
      disk.remove()
    })
    const freeMib = (): number => {
      const { bavail, bsize } = statfsSync(disk.folder)
      return (bavail * bsize) / MIB
    }
    const storage = await fixture.open()
    const path = await storage.open(newVolume())
    let writtenMib = 0
    // Each write gets a share of what is left, so it takes a few to reach the reserve.
    await waitUntil(async () => {
      const taken = await fillFile(join(path, `file-${String(writtenMib)}`), 1_000).catch(() => 0)
      writtenMib += taken / MIB
      return freeMib() < RESERVE_MIB + 20
    })
    assert.ok(freeMib() > RESERVE_MIB - 5, `only ${String(freeMib())} MiB are free`)
    assert.ok(writtenMib > 300, `${String(writtenMib)} MiB were written and synced`)
    rmSync(join(path, 'file-0'))
    await waitUntil(async () => (await fillFile(join(path, 'again'), 20).catch(() => 0)) === 20 * MIB)
    assert.ok(freeMib() > RESERVE_MIB - 5, `only ${String(freeMib())} MiB are free`)
  })
})

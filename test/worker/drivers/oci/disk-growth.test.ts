import assert from 'node:assert/strict'
import { test } from 'node:test'
import { growthShares, isMeasurementDue, type DiskUse } from '../../../../src/worker/drivers/oci/disk/disk-growth.ts'

const GIB = 1024 ** 3

const disk = (allocatedBytes: number, takenBytes: number): DiskUse => ({ freeBytes: GIB, allocatedBytes, takenBytes })

test('disks share what is free, less what they have allocated and not yet written, and leave a share to new ones', () => {
  const shareOf = (freeBytes: number, disks: readonly DiskUse[]): number => growthShares(freeBytes, disks).equalBytes
  assert.equal(shareOf(3 * GIB, [disk(GIB, GIB), disk(GIB, GIB)]), GIB)
  assert.equal(shareOf(8 * GIB, [disk(3 * GIB, GIB), disk(GIB, GIB)]), 2 * GIB)
  assert.equal(shareOf(4 * GIB, [disk(GIB, 2 * GIB)]), 2 * GIB, 'a file may take more: metadata and deleted files')
})

test('no disk may grow when nothing is free or all of it is promised', () => {
  assert.deepEqual(growthShares(0, [disk(GIB, GIB)]), { equalBytes: 0, burstBytes: 0 })
  assert.deepEqual(growthShares(GIB, [disk(3 * GIB, GIB)]), { equalBytes: 0, burstBytes: 0 })
})

test('of what is beyond the largest burst, a disk may take a quarter, however many disks there are', () => {
  const many = Array.from({ length: 99 }, () => disk(GIB, GIB))
  assert.deepEqual(growthShares(48 * GIB, many), { equalBytes: 0.48 * GIB, burstBytes: 10 * GIB })
  assert.deepEqual(growthShares(8 * GIB, many), { equalBytes: 0.08 * GIB, burstBytes: 0 })
})

test('without a measurement of the file system below, disks grow freely', () => {
  assert.equal(growthShares(Number.POSITIVE_INFINITY, [disk(GIB, 0)]).equalBytes, Number.POSITIVE_INFINITY)
})

test('disks are measured again when their number or what is free changes, and after a time that grows with their number', () => {
  const last = { atMs: 0, freeBytes: 100 * GIB, disks: 1_000 }
  const isDue = (change: Partial<typeof last>, limitBytes = 4 * GIB): boolean =>
    isMeasurementDue(last, { ...last, atMs: 1_000, ...change }, limitBytes)
  assert.equal(isDue({}), false)
  assert.equal(isDue({ disks: 999 }), true)
  assert.equal(isDue({ freeBytes: 99 * GIB }), false)
  assert.equal(isDue({ freeBytes: 99 * GIB - 1 }), true, 'more than a quarter of what a disk may take is gone')
  assert.equal(isDue({ freeBytes: 101 * GIB + 1 }), true)
  assert.equal(isDue({ freeBytes: 100 * GIB - 1 }, 0), true, 'disks that may not grow are measured at each change')
  assert.equal(isDue({ atMs: 19_999 }), false)
  assert.equal(isDue({ atMs: 20_000 }), true)
})

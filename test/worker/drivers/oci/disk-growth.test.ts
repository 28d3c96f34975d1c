import assert from 'node:assert/strict'
import { test } from 'node:test'
import { growthShare, type DiskUse } from '../../../../src/worker/drivers/oci/disk/disk-growth.ts'

const GIB = 1024 ** 3

const disk = (allocatedBytes: number, takenBytes: number): DiskUse => ({ freeBytes: GIB, allocatedBytes, takenBytes })

test('disks share what is free, less what they have allocated and not yet written', () => {
  assert.equal(growthShare(4 * GIB, [disk(GIB, GIB), disk(GIB, GIB)]), 2 * GIB)
  assert.equal(growthShare(4 * GIB, [disk(3 * GIB, GIB), disk(GIB, GIB)]), GIB)
  assert.equal(growthShare(4 * GIB, [disk(GIB, 2 * GIB)]), 4 * GIB, 'a file may take more: metadata and deleted files')
})

test('no disk may grow when nothing is free or all of it is promised', () => {
  assert.equal(growthShare(0, [disk(GIB, GIB)]), 0)
  assert.equal(growthShare(GIB, [disk(3 * GIB, GIB)]), 0)
})

test('beyond the largest burst, a disk may take a quarter, however many disks there are', () => {
  const many = Array.from({ length: 100 }, () => disk(GIB, GIB))
  assert.equal(growthShare(48 * GIB, many), 10 * GIB)
  assert.equal(growthShare(8 * GIB, many), 0.08 * GIB)
})

test('without a measurement of the file system below, disks grow freely', () => {
  assert.equal(growthShare(Number.POSITIVE_INFINITY, [disk(GIB, 0)]), Number.POSITIVE_INFINITY)
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { asId, type RunId } from '../../../src/domain/ids.ts'
import {
  chooseRunToStop,
  diskPressureOf,
  roundMib,
  type DiskWriter,
} from '../../../src/domain/workers/disk-pressure.ts'

const MIB = 1024 * 1024
const writer = (name: string, takenMib: number, grewMib: number): DiskWriter => ({
  run_id: asId<RunId>(name),
  takenBytes: takenMib * MIB,
  grewBytes: grewMib * MIB,
})

test('a level begins at its watermark', () => {
  const levels = [5, 2.01, 2, 1.01, 1, 0.51, 0.5, 0].map((reserves) => diskPressureOf(reserves, 'none'))
  assert.deepEqual(levels, ['none', 'none', 'low', 'low', 'short', 'short', 'critical', 'critical'])
  assert.equal(diskPressureOf(Infinity, 'none'), 'none')
})

test('a level ends only a tenth of the reserve beyond its watermark, so that it does not flap', () => {
  assert.equal(diskPressureOf(0.6, 'critical'), 'critical')
  assert.equal(diskPressureOf(0.61, 'critical'), 'short')
  assert.equal(diskPressureOf(1.05, 'short'), 'short')
  assert.equal(diskPressureOf(1.05, 'low'), 'low')
  assert.equal(diskPressureOf(2.11, 'critical'), 'none')
})

test('the run that grew most is stopped, and none that did not grow, however large it is', () => {
  assert.equal(chooseRunToStop([writer('huge', 9_000, 0), writer('slow', 50, 3), writer('fast', 20, 15)]), 'fast')
  assert.equal(chooseRunToStop([writer('small', 10, 5), writer('large', 20, 5)]), 'large')
  assert.equal(chooseRunToStop([writer('huge', 9_000, 0), writer('still', 10, 0.5)]), null)
  assert.equal(chooseRunToStop([]), null)
})

test('a rounded size changes seldom, and is never larger', () => {
  assert.deepEqual([0, 1, 63, 64, 65, 129, 10_000, 100_000].map(roundMib), [0, 1, 63, 64, 65, 128, 9_984, 99_328])
})

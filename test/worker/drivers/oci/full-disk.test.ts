import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeOciFixture, whyNoOci } from '../../../support/oci-driver.ts'
import { mountSmallDisk, whyNoSmallDisk } from '../../../support/small-disk.ts'
import { find } from '../conformance.ts'

test(
  'a run is stopped although the disk with its record is full to the last byte, and another worker process knows why',
  { skip: whyNoSmallDisk() || (whyNoOci() ?? false) },
  async () => {
    const disk = mountSmallDisk(256)
    const fixture = await makeOciFixture(undefined, undefined, undefined, disk.folder)
    let driver = await fixture.open({ readyAhead: 0 })
    try {
      const desired = makeDesiredRun()
      const { run_id } = desired
      await driver.start(desired, new AbortController().signal)
      while (disk.fill() > 0) continue
      await driver.stop(run_id, 0, { kind: 'disk_full' })
      assert.deepEqual((await find(driver, run_id))?.outcome, { kind: 'disk_full' })
      await driver.close()
      driver = await fixture.open({ readyAhead: 0 })
      assert.deepEqual((await find(driver, run_id))?.outcome, { kind: 'disk_full' })
    } finally {
      disk.free()
      for (const run of await driver.list()) await driver.remove(run.run_id)
      await driver.close()
      assert.deepEqual(await fixture.leftovers(), [])
      await fixture.remove()
      disk.remove()
    }
  },
)

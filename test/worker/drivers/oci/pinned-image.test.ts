import assert from 'node:assert/strict'
import { rename } from 'node:fs/promises'
import { test } from 'node:test'
import { readLayersInUse } from '../../../../src/worker/drivers/oci/disk/pinned-image.ts'
import { folderHash } from '../../../support/folder-hash.ts'
import { makeOciFixture, whyNoOci } from '../../../support/oci-driver.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'

const skip = whyNoOci() ?? false

test(
  'a restart uses the image of the first start or fails, and its layers are in use while the sandbox is stored',
  { skip },
  async () => {
    const fixture = await makeOciFixture()
    const driver = await fixture.open()
    const dir = `${fixture.dir}/state`
    const folders = { dir, imagesDir: fixture.folders.images, key: folderHash(dir) }
    const never = new AbortController().signal
    try {
      const first = makeDesiredRun()
      await driver.start(first, never)
      await driver.stop(first.run_id, 0)
      await driver.remove(first.run_id)
      assert.ok((await readLayersInUse(folders)).has(fixture.layer), 'the layers of a stopped sandbox are in use')

      await rename(fixture.layer, `${fixture.layer}.away`)
      const without = makeDesiredRun({}, first.sandbox_id)
      await assert.rejects(driver.start(without, never), { reason: 'image', message: /are gone from the worker/ })
      await driver.remove(without.run_id)
      await rename(`${fixture.layer}.away`, fixture.layer)

      fixture.image.config = { ...fixture.image.config, env: ['PATH=/usr/bin:/bin', 'FROM_IMAGE=moved'] }
      const again = makeDesiredRun({}, first.sandbox_id)
      await driver.start(again, never)
      const channel = await driver.openChannel(again.run_id)
      assert.ok(fixture.container(again.run_id).image.env.includes('FROM_IMAGE=yes'))
      channel.destroy()

      await driver.remove(again.run_id)
      await driver.discard(first.sandbox_id)
      assert.equal((await readLayersInUse(folders)).size, 0)
    } finally {
      await driver.close()
      await fixture.remove()
    }
  },
)

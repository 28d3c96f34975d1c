import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../../../src/lib/clock.ts'
import { localCommands } from '../../../../src/lib/run-command.ts'
import { findEarlierKey } from '../../../../src/worker/drivers/oci/run/earlier-key.ts'
import { mountFolderOf } from '../../../../src/worker/mounts.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { folderHash } from '../../../support/folder-hash.ts'
import { makeOciFixture, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { waitUntil } from '../../../support/wait.ts'

// Earlier releases named the cgroup and the mounts of a driver by a hash of its folder's path, as the fixture does.

const NEVER = new AbortController().signal

describe('an installation of a release whose keys were hashes of a path', { skip: whyNoOci() ?? false }, () => {
  let fixture: OciFixture
  let dir: string
  before(async () => {
    fixture = await makeOciFixture()
    dir = join(fixture.dir, 'state')
  })
  after(() => fixture.remove())
  const find = (earlierDir: string): Promise<string | null> =>
    findEarlierKey({ dir, earlierDir, clock: systemClock, commands: localCommands })

  test('keeps its key while a sandbox runs, even after its folder was moved, and leaves nothing under it', async () => {
    const key = folderHash(dir)
    const run = makeDesiredRun()
    const earlier = await fixture.open()
    await earlier.start(run, NEVER)
    await earlier.close()
    assert.equal(await find(dir), key)
    assert.equal(await find('/moved/from/elsewhere'), key, 'the run tells whose key it is')
    const adopted = await fixture.open()
    assert.deepEqual(
      (await adopted.list()).map(({ run_id, phase }) => [run_id, phase]),
      [[run.run_id, 'running']],
    )
    await adopted.remove(run.run_id)
    await adopted.close()
    assert.equal(await find(dir), null)
    assert.deepEqual(await fixture.leftovers(), [])
  })

  test('has its mounts and cgroups removed if its sandboxes have ended without a worker', async () => {
    const run = makeDesiredRun()
    const earlier = await fixture.open({ readyAhead: 0 })
    await earlier.start(run, NEVER)
    const channel = await earlier.openChannel(run.run_id)
    channel.destroy()
    await earlier.close()
    process.kill(fixture.container(run.run_id).initPid, 'SIGKILL')
    await waitUntil(async () => (await find(dir)) === null)
    assert.ok(!existsSync(mountFolderOf(folderHash(dir))))
    const later = await fixture.open({}, { key: `${folderHash(dir)}-sandboxes` })
    const [ended] = await later.list()
    assert.equal(ended?.phase, 'ended')
    await later.remove(run.run_id)
    await later.close()
    assert.deepEqual(await fixture.leftovers(), [])
  })
})

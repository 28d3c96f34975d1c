import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { freezeMount } from '../../../src/cli/backup/frozen-mount.ts'
import { mountSmallDisk, whyNoSmallDisk, type SmallDisk } from '../../support/small-disk.ts'

describe('a frozen mount', { skip: whyNoSmallDisk() }, () => {
  let disk: SmallDisk
  before(() => {
    disk = mountSmallDisk(16)
  })
  after(() => {
    disk.remove()
  })
  const write = (): Promise<string> => writeFile(join(disk.folder, 'file'), 'text').then(() => 'written')

  test('nobody can write until it is thawed', async () => {
    const frozen = await freezeMount(disk.folder, 60)
    let isWritten = false
    const writing = write().finally(() => (isWritten = true))
    // By the time that this program has ended, an unhindered write would have ended too.
    assert.throws(() => execFileSync('fsfreeze', ['--freeze', disk.folder], { stdio: 'pipe' }), /busy/)
    await new Promise((resolve) => setImmediate(resolve))
    assert.ok(!isWritten)
    assert.equal(await frozen.thaw(), true)
    assert.equal(await writing, 'written')
  })

  test('it is thawed when the limit passes, and whoever reads it is told', async () => {
    const frozen = await freezeMount(disk.folder, 1)
    assert.equal(await write(), 'written')
    assert.equal(await frozen.thaw(), false)
    assert.ok(frozen.over.aborted)
  })

  test('it is thawed when its process is killed', async () => {
    const child = spawn(process.execPath, [join(import.meta.dirname, '../../support/freeze-process.ts'), disk.folder], {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    await once(child.stdout, 'data')
    child.kill('SIGKILL')
    assert.equal(await write(), 'written')
  })
})

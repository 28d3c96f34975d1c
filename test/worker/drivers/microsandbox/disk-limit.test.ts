import assert from 'node:assert/strict'
import { mkdir, mkdtemp, rm, stat, truncate, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { NO_DISK_RESERVE } from '../../../../src/worker/disk-reserve.ts'
import { measureDiskLimitMib } from '../../../../src/worker/drivers/microsandbox/disk-limit.ts'
import { sandboxesFolder } from '../../../../src/worker/drivers/microsandbox/installation.ts'

const MIB = 1024 * 1024

test('what microVMs have written counts as space for disks, their sparse rest does not, and both are overcommitted', async (t) => {
  const home = await mkdtemp(join(tmpdir(), 'sandyard-disk-limit-'))
  t.after(() => rm(home, { recursive: true, force: true }))
  const share = { diskReserve: { ...NO_DISK_RESERVE, freeMib: () => Promise.resolve(100) }, diskOvercommit: 3 }
  assert.equal(await measureDiskLimitMib(home, share), 300, 'no sandbox was ever started')
  const folder = join(sandboxesFolder(home), 'sy-1', 'disk')
  await mkdir(folder, { recursive: true })
  const disk = join(folder, 'upper')
  await writeFile(disk, Buffer.alloc(4 * MIB, 1))
  await truncate(disk, 4_096 * MIB)
  const takenMib = ((await stat(disk)).blocks * 512) / MIB
  assert.ok(takenMib >= 4 && takenMib < 100, String(takenMib))
  assert.equal(await measureDiskLimitMib(home, share), (100 + takenMib) * 3)
})

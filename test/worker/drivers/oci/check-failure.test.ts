import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { tryCommand } from '../../../../src/lib/run-command.ts'
import { describeCheckFailure } from '../../../../src/worker/drivers/oci/disk/check-failure.ts'
import { isInstalled } from '../../../support/oci-driver.ts'

const skip = isInstalled('e2fsck') ? false : 'e2fsck is not installed'

test(
  'only a damaged file system is called damaged; other failures of its check are told as what they were',
  { skip },
  async () => {
    const folder = mkdtempSync(join(tmpdir(), 'sandyard-check-'))
    const check = async (path: string): Promise<string | null> =>
      describeCheckFailure(await tryCommand('e2fsck', ['-f', '-y', path], { timeoutMs: 20_000 }))
    try {
      const disk = join(folder, 'disk')
      writeFileSync(disk, '')
      truncateSync(disk, 4 * 1024 * 1024)
      execFileSync('mkfs.ext4', ['-q', '-F', disk])
      assert.equal(await check(disk), null)
      assert.match(
        (await check(join(folder, 'missing'))) ?? '',
        /could not be checked \(e2fsck exit 8: .*No such file/s,
      )
    } finally {
      rmSync(folder, { recursive: true })
    }
    const described = (code: number | null) => describeCheckFailure({ code, stdout: '', stderr: '' })
    assert.deepEqual([0, 1, 2, 3].map(described), [null, null, null, null])
    assert.match(described(4) ?? '', /damaged beyond repair/)
    assert.match(described(12) ?? '', /could not be checked/)
    assert.match(described(32) ?? '', /interrupted/)
    assert.match(described(null) ?? '', /interrupted/)
  },
)

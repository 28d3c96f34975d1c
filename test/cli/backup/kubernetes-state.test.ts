import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { makeBackupFolder } from '../../support/backup-folder.ts'
import { runProgram } from '../../support/program.ts'

/** What a worker with the driver `kubernetes` has in its data folder, beside images. */
const STATE = ['owner', 'claims/claim.json', 'sandboxes/run.json', 'registry/key.pem', 'registry/secret']
const IMAGE = 'registry/images/blob'

for (const { flags, hasImages } of [
  { flags: [], hasImages: true },
  { flags: ['--without-images'], hasImages: false },
])
  test(`a restored worker owns the Pods of the original (backup ${flags.join(' ')})`, async () => {
    await using made = await makeBackupFolder()
    for (const name of [...STATE, IMAGE]) {
      const path = join(made.dataDir, 'kubernetes', name)
      await mkdir(dirname(path), { recursive: true })
      await writeFile(path, `contents of ${name}`, { mode: 0o600 })
    }
    const taken = await runProgram(['backup', made.target, '--data-dir', made.dataDir, ...flags], {})
    assert.equal(taken.code, 0, taken.output)
    const restored = join(made.root, 'restored')
    const { code, output } = await runProgram(['restore', made.target, '--data-dir', restored], {})
    assert.equal(code, 0, output)
    for (const name of STATE)
      assert.equal(await readFile(join(restored, 'kubernetes', name), 'utf8'), `contents of ${name}`)
    assert.equal(existsSync(join(restored, 'kubernetes', IMAGE)), hasImages)
  })

test('uninstall deletes the private key of a registry, and the page with the sign-in', async () => {
  await using made = await makeBackupFolder()
  await made.backup() // and so it is a data folder
  await mkdir(join(made.dataDir, 'kubernetes', 'registry'), { recursive: true })
  await writeFile(join(made.dataDir, 'kubernetes', 'registry', 'key.pem'), 'key')
  await writeFile(join(made.dataDir, 'sign-in.html'), 'page')
  const { code, output } = await runProgram(['uninstall', '--yes', '--data-dir', made.dataDir], {})
  assert.equal(code, 0, output)
  assert.ok(!existsSync(made.dataDir), output)
})

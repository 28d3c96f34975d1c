import assert from 'node:assert/strict'
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { runProgram } from '../../support/program.ts'

test('uninstall deletes what an incomplete restore left, whose keys are those of the installation', async () => {
  const root = mkdtempSync(join(tmpdir(), 'sandyard-incomplete-'))
  try {
    const dataDir = join(root, 'data')
    mkdirSync(dataDir)
    writeFileSync(join(dataDir, 'restore.incomplete'), '') // a restore that was killed just after the keys
    writeFileSync(join(dataDir, 'sealing.key'), 'key')
    const refused = await runProgram(['uninstall', '--data-dir', dataDir], {})
    assert.equal(refused.code, 2, refused.output)
    assert.ok(existsSync(join(dataDir, 'sealing.key')))
    const { code, output } = await runProgram(['uninstall', '--yes', '--data-dir', dataDir], {})
    assert.equal(code, 0, output)
    assert.ok(!existsSync(dataDir), output)
  } finally {
    rmSync(root, { recursive: true, force: true })
  }
})

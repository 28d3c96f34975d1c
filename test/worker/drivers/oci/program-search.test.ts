import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { checkProgram } from '../../../../src/worker/drivers/oci/rootfs/check-program.ts'
import { ROOT_USER } from '../../../../src/worker/drivers/oci/rootfs/users.ts'

test('all folders of PATH together are searched for a bounded number of steps', async () => {
  const path = mkdtempSync(join(tmpdir(), 'program-search-'))
  const [deep, last] = ['d', 'e'].map((name) => Array.from({ length: 900 }, () => name).join('/'))
  for (const folder of [deep, last]) mkdirSync(join(path, folder ?? ''), { recursive: true })
  writeFileSync(join(path, last ?? '', 'tool'), `#!/d\n`, { mode: 0o755 })
  for (const isFresh of [false, true]) {
    const search = async (folders: number): Promise<void> => {
      const PATH = [...Array.from({ length: folders }, () => `/${deep ?? ''}`), `/${last ?? ''}`].join(':')
      const root = { path, uidShift: 0, hiddenMountPoints: [], isFresh }
      await checkProgram(root, { cmd: 'tool', cwd: '/', path: PATH, user: ROOT_USER })
    }
    await search(1)
    await assert.rejects(search(2), { kind: 'not_found' })
  }
  rmSync(path, { recursive: true })
})

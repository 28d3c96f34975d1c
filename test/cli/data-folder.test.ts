import assert from 'node:assert/strict'
import { mkdtemp, readdir, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { openDataFolder } from '../../src/cli/server/data-folder.ts'
import { systemRandom } from '../../src/lib/random.ts'

let dir: string
before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'sandyard-folder-'))
})
after(() => rm(dir, { recursive: true }))

test('all processes that open a data folder get the same keys, even if they open it at the same time', async () => {
  const path = join(dir, 'many', 'deep')
  const opened = await Promise.all(Array.from({ length: 10 }, () => openDataFolder(path, systemRandom, null)))
  const [first] = opened
  assert.ok(first)
  for (const folder of [...opened, await openDataFolder(path, systemRandom, null)]) assert.deepEqual(folder, first)
  assert.equal(first.sealingKey.length, 32)
  assert.match(first.namePrefix, /^[a-z0-9]{6}$/)
})

test('only the owner can read the files of a data folder, and no incomplete file is left', async () => {
  const path = join(dir, 'closed')
  await openDataFolder(path, systemRandom, null)
  const names = await readdir(path)
  assert.deepEqual(names.sort(), ['name-prefix', 'sealing.key', 'worker.credential'])
  for (const name of names) assert.equal((await stat(join(path, name))).mode & 0o777, 0o600)
  assert.equal((await stat(path)).mode & 0o777, 0o711)
})

test('a sealing key from the settings is used, and no key is stored', async () => {
  const path = join(dir, 'given')
  const key = Buffer.alloc(32, 7)
  assert.deepEqual((await openDataFolder(path, systemRandom, key.toString('base64'))).sealingKey, key)
  assert.ok(!(await readdir(path)).includes('sealing.key'))
})

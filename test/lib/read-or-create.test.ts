import assert from 'node:assert/strict'
import { mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { systemRandom } from '../../src/lib/random.ts'
import { readOrCreateFile } from '../../src/lib/read-or-create.ts'

test('a file is made once, whoever makes it at the same time, and an empty one is made anew', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'sandyard-files-'))
  const path = join(folder, 'secret')
  const made = await Promise.all(['a', 'b', 'c'].map((text) => readOrCreateFile(path, systemRandom, () => text)))
  assert.equal(new Set(made).size, 1)
  assert.equal(await readOrCreateFile(path, systemRandom, () => 'later'), made[0])
  assert.equal((await stat(path)).mode & 0o777, 0o600)
  await writeFile(path, '')
  assert.equal(await readOrCreateFile(path, systemRandom, () => 'new'), 'new')
  assert.equal(await readFile(path, 'utf8'), 'new')
  assert.deepEqual(await readdir(folder), ['secret'], 'nothing unfinished is left')
  await rm(folder, { recursive: true })
})

import assert from 'node:assert/strict'
import { appendFile, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { formatManifest, type Manifest } from '../../../src/cli/backup/manifest.ts'
import { makeBackupFolder } from '../../support/backup-folder.ts'
import { runProgram } from '../../support/program.ts'

test('damaged backups, and those of a later format, are in the way of no earlier one', async () => {
  await using made = await makeBackupFolder()
  const { manifest } = await made.backup()
  const folder = join(made.target, 'backups')
  const add = async (taken_at: string, format: string): Promise<string> => {
    const later = formatManifest({ ...manifest, taken_at, format: format as Manifest['format'] })
    await writeFile(join(folder, later.name), later.text)
    return later.name
  }
  const damaged = await add('2101-01-01T00:00:00.000Z', manifest.format)
  await appendFile(join(folder, damaged), ' ')
  const unknown = await add('2102-01-01T00:00:00.000Z', 'sandyard backup 2')
  const restore = (into: string, ...flags: readonly string[]) =>
    runProgram(['restore', made.target, '--data-dir', join(made.root, into), ...flags], {})

  const old = await restore('old', '--at', '2100-01-01T00:00:00Z')
  assert.equal(old.code, 0, old.output)
  assert.equal(await readFile(join(made.root, 'old', 'worker.json'), 'utf8'), '{}')
  const early = await restore('early', '--at', '2001-01-01T00:00:00Z')
  assert.deepEqual([early.code, /there is no backup of 2001/.test(early.output)], [1, true], early.output)

  // What is asked for is never replaced by an older one.
  const second = await restore('second', '--at', '2101-06-01T00:00:00Z')
  assert.deepEqual([second.code, second.output.includes(`${damaged} is damaged`)], [1, true], second.output)
  const newest = await restore('newest')
  assert.deepEqual([newest.code, /restore it with a later release/.test(newest.output)], [1, true], newest.output)

  const list = await runProgram(['backup', 'list', made.target], {})
  assert.equal(list.code, 1, list.output)
  for (const text of [manifest.taken_at, `${damaged} is damaged`, `${unknown} has the format 'sandyard backup 2'`])
    assert.ok(list.output.includes(text), list.output)
})

test('a time with fractions of a second separates two backups of one second', async () => {
  await using made = await makeBackupFolder()
  const { manifest } = await made.backup()
  for (const ms of ['100', '900']) {
    const { name, text } = formatManifest({ ...manifest, taken_at: `2101-01-01T00:00:00.${ms}Z` })
    await writeFile(join(made.target, 'backups', name), text)
  }
  const { code, output } = await runProgram(
    ['restore', made.target, '--data-dir', join(made.root, 'new'), '--at', '2101-01-01T00:00:00.500Z'],
    {},
  )
  assert.equal(code, 0, output)
  assert.match(output, /restored the backup of 2101-01-01T00:00:00\.100Z/)
})

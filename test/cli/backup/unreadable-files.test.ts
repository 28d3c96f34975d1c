import assert from 'node:assert/strict'
import { appendFileSync, mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { mkdir, readdir, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { readArchive } from '../../../src/cli/backup/archives.ts'
import { runCommand } from '../../../src/lib/run-command.ts'
import { makeBackupFolder } from '../../support/backup-folder.ts'
import { mountDamagedDisk, type DamagedDisk } from '../../support/damaged-disk.ts'
import { runProgram } from '../../support/program.ts'
import { whyNoSmallDisk } from '../../support/small-disk.ts'

const COMMAND = { timeoutMs: 20_000 }
const ORG = 'c7f0c4cb-6d2b-4b8b-9d4e-0b8a4c1f9a11'
const VOLUME = '0d9b0a52-7a3a-4c0c-8f9e-0f1d5a2b3c44'

describe('files that the disk can no longer read', { skip: whyNoSmallDisk() }, () => {
  let disk: DamagedDisk
  before(() => {
    disk = mountDamagedDisk()
  })
  after(() => {
    disk.remove()
  })

  test('the command lists each of them and exits with 1, and takes everything else', async () => {
    await using made = await makeBackupFolder()
    const folders = [
      'logs',
      join('volumes', 'folders', ORG, VOLUME),
      join('images', 'layers', 'a'.repeat(32)),
      join('sandboxes', 'disks', 'snapshots', 'snap_1'),
    ].map((name) => join(made.dataDir, name))
    for (const folder of [...folders, join(made.dataDir, 'images', 'images')]) await mkdir(folder, { recursive: true })
    for (const folder of folders) {
      await writeFile(join(folder, 'readable'), 'text')
      await writeFile(join(folder, 'unreadable'), '')
      await runCommand('mount', ['--bind', join(disk.folder, 'unreadable'), join(folder, 'unreadable')], COMMAND)
    }
    try {
      const { code, output } = await runProgram(['backup', made.target, '--data-dir', made.dataDir], {})
      assert.equal(code, 1, output)
      const leftOut = output.split('\n').filter((line) => line.includes('left out: '))
      assert.equal(leftOut.length, folders.length, output)
      for (const line of leftOut) assert.match(line, /unreadable: Read error at byte 0, .*Input\/output error/)
      for (const what of ['logs logs', 'volume ', 'snapshot snap_1', 'images aaaa'])
        assert.ok(
          leftOut.some((line) => line.includes(`left out: ${what}`)),
          `${what}\n${output}`,
        )
      const { manifest } = await made.backup()
      const kinds = manifest.archives.map(({ kind, name }) => `${kind} ${name}`)
      assert.deepEqual(
        kinds.filter((kind) => !/^(keys|volume) /.test(kind)),
        ['logs logs', 'images records'],
        'a layer or a snapshot with a hole is of no use',
      )
    } finally {
      for (const folder of folders) await runCommand('umount', [join(folder, 'unreadable')], COMMAND)
    }
    assert.ok((await readdir(made.target)).includes('backups'))
  })
})

describe('files that change while they are read', () => {
  let dir: string
  before(() => {
    dir = mkdtempSync(join(tmpdir(), 'sandyard-changing-'))
  })
  after(() => {
    rmSync(dir, { recursive: true })
  })

  /** Reads a folder with a large file, changes something when the first part of that file is read, and resolves with the flaws. */
  const readWhile = async (change: (folder: string) => void): Promise<readonly string[]> => {
    const folder = mkdtempSync(join(dir, 'folder-'))
    // Much more than fits into the pipe, so that tar waits within it until we go on.
    writeFileSync(join(folder, 'large'), Buffer.alloc(8 * 1024 * 1024, 'x'))
    writeFileSync(join(folder, 'small'), 'text')
    mkdirSync(join(folder, 'sub'))
    const flaws: string[] = []
    let isChanged = false
    const onFlaw = (text: string): void => void flaws.push(text)
    for await (const part of readArchive({ dir: folder, paths: ['.'] }, { isChanging: true, onFlaw })) {
      if (isChanged || !part.includes('xxxx')) continue
      isChanged = true
      change(folder)
    }
    assert.ok(isChanged)
    return flaws
  }

  test('one that grows or is deleted is no failure', async () => {
    assert.deepEqual(await readWhile((folder) => appendFileSync(join(folder, 'large'), 'more')), [])
    assert.deepEqual(await readWhile((folder) => rmSync(join(folder, 'small'))), [])
    assert.deepEqual(await readWhile((folder) => rmSync(join(folder, 'sub'), { recursive: true })), [])
  })

  test('one that shrinks is a failure, because the archive has zeros instead', async () => {
    const flaws = await readWhile((folder) => truncateSync(join(folder, 'large'), 0))
    assert.equal(flaws.length, 1)
    assert.match(flaws[0] ?? '', /^\.\/large: File shrank by \d+ bytes; padding with zeros$/)
  })

  test('a socket is no failure', async () => {
    const folder = mkdtempSync(join(dir, 'folder-'))
    const server = createServer()
    await new Promise<void>((resolve) => server.listen(join(folder, 'socket'), resolve))
    try {
      for await (const _ of readArchive({ dir: folder, paths: ['.'] }, { isChanging: false }));
    } finally {
      server.close()
    }
  })
})

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { existsSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, test } from 'node:test'
import { openFolderRepository } from '../../../src/cli/backup/folder-repository.ts'
import { openRepository, openWriter } from '../../../src/cli/backup/open-repository.ts'
import {
  chunkName,
  compress,
  readVerified,
  TargetError,
  type RepositoryWriter,
} from '../../../src/cli/backup/repository.ts'
import { makeBackupFolder } from '../../support/backup-folder.ts'
import { mountSmallDisk, whyNoSmallDisk, type SmallDisk } from '../../support/small-disk.ts'

const MIB = 1024 * 1024

type Chunk = { readonly chunk: string; readonly compressed: Buffer }

describe('a target that is full for a while', { skip: whyNoSmallDisk() }, () => {
  let disk: SmallDisk
  beforeEach(() => {
    disk = mountSmallDisk(32)
  })
  afterEach(() => {
    disk.remove()
  })

  async function makeChunk(): Promise<Chunk & { readonly bytes: Buffer }> {
    const bytes = randomBytes(4 * MIB)
    return { bytes, chunk: chunkName(bytes), compressed: await compress(bytes) }
  }

  async function assertRefusedWhileFull(writer: RepositoryWriter, { chunk, compressed }: Chunk): Promise<void> {
    disk.fill()
    await assert.rejects(writer.writeChunk(chunk, compressed), TargetError)
    assert.equal(writer.has(chunk), false)
    disk.free()
  }

  test('a chunk that could not be written never counts as stored', async () => {
    const target = join(disk.folder, 'backups')
    const { bytes, chunk, compressed } = await makeChunk()
    {
      await using writer = await openWriter(target)
      await assertRefusedWhileFull(writer, { chunk, compressed })
      await writer.writeChunk(chunk, compressed)
      assert.equal(writer.has(chunk), true)
      await writer.commit('20280229T120000Z-name.json', '{}', new Set([chunk]))
    }
    assert.deepEqual(await readVerified(openFolderRepository(target), chunk), bytes)
  })

  test('a tar file with a chunk that could not be written is never completed', async () => {
    const target = join(disk.folder, 'backup.tar')
    const { chunk, compressed } = await makeChunk()
    await using writer = await openWriter(target)
    await assertRefusedWhileFull(writer, { chunk, compressed })
    await assert.rejects(writer.commit('20280229T120000Z-name.json', '{}', new Set([chunk])), TargetError)
    assert.ok(!existsSync(target))
  })

  test('a backup ends when the target becomes full within a disk, although there is space for the next one', async () => {
    await using made = await makeBackupFolder()
    const bytes = randomBytes(8 * MIB)
    for (const id of ['sandbox-1', 'sandbox-2']) await made.addDisk(id, bytes)
    const target = join(disk.folder, 'backups')
    await mkdir(target)
    let disks = 0
    const onProgress = (text: string): void => {
      if (!text.startsWith('disk ')) return
      disks += 1
      if (disks === 1) disk.fill()
      else disk.free()
    }
    await assert.rejects(made.backup({ target, onProgress }), /the file system with .* is full: enlarge it/)
    assert.equal(disks, 1)
    assert.deepEqual(readdirSync(join(target, 'backups')), [])
    disk.free()
    const { failures, manifest } = await made.backup({ target })
    assert.deepEqual(failures, [])
    const repository = await openRepository(target)
    for (const { chunks } of manifest.archives) for (const chunk of chunks) await readVerified(repository, chunk)
  })
})

test('a target that can not be made is refused with what a target is, and nothing is made', async () => {
  const root = mkdtempSync(join(tmpdir(), 'sandyard-target-'))
  try {
    writeFileSync(join(root, 'file'), 'kept')
    symlinkSync(join(root, 'unmounted/backups'), join(root, 'link'))
    const targets = ['file', 'file/beneath', 'link', 'missing/backup.tar'].map((name) => join(root, name))
    for (const target of [...targets, '/proc/sandyard', '/proc/sandyard/beneath'])
      await assert.rejects(openWriter(target), {
        message: `${target} can't be made or written: name a folder, or a new file in an existing folder, whose name ends with .tar`,
      })
    assert.deepEqual(readdirSync(root).toSorted(), ['file', 'link'])
  } finally {
    rmSync(root, { recursive: true })
  }
})

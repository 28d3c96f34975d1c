import assert from 'node:assert/strict'
import { chmod, mkdtemp, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { after, before, describe, test } from 'node:test'
import { readArchive, writeArchive } from '../../../src/cli/backup/archives.ts'

describe('files written from a tar stream', () => {
  let dir: string
  before(async () => {
    dir = await mkdtemp(join(tmpdir(), 'sandyard-write-'))
    await writeFile(join(dir, 'file'), 'x'.repeat(1_000_000))
  })
  after(() => rm(dir, { recursive: true }))

  const archive = (): AsyncIterable<Buffer> => readArchive({ dir, paths: ['file'] }, { isChanging: false })
  const target = (): Promise<string> => mkdtemp(join(dir, 'target-'))

  /** Writes an archive with a script in place of tar. */
  const writeWith = async (script: string): Promise<void> => {
    const stream = Readable.from([await readAll(archive())])
    const programs = await mkdtemp(join(dir, 'programs-'))
    await writeFile(join(programs, 'tar'), `#!/bin/sh\n${script}\n`)
    await chmod(join(programs, 'tar'), 0o755)
    const path = process.env['PATH']
    process.env['PATH'] = `${programs}:${path ?? ''}`
    try {
      await writeArchive(stream, await target())
    } finally {
      process.env['PATH'] = path
    }
  }

  test('are a failure if tar is killed or fails after it has read everything, even without a message', async () => {
    await assert.rejects(writeWith('cat > /dev/null; kill -KILL $$'), /can't be written: tar was ended by SIGKILL/)
    await assert.rejects(writeWith('cat > /dev/null; exit 2'), /can't be written: tar ended with 2/)
  })

  test('are a failure that has the message of tar if tar ends early', async () => {
    await assert.rejects(writeWith('echo no space >&2; exit 2'), /can't be written: no space/)
  })

  test('are a failure that says what the stream lacks, not what tar misses', async () => {
    const damaged = async function* () {
      yield (await readAll(archive())).subarray(0, 5_000)
      throw new Error('a chunk is damaged')
    }
    await assert.rejects(writeArchive(Readable.from(damaged()), await target()), /a chunk is damaged/)
  })

  test('are complete if tar succeeds, however soon it ends', async () => {
    for (let count = 0; count < 50; count++) {
      const into = await target()
      await writeArchive(Readable.from(archive()), into)
      assert.equal((await stat(join(into, 'file'))).size, 1_000_000)
    }
  })
})

async function readAll(stream: AsyncIterable<Buffer>): Promise<Buffer> {
  const parts: Buffer[] = []
  for await (const part of stream) parts.push(part)
  return Buffer.concat(parts)
}

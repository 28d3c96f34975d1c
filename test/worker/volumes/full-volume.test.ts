import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { duplexPair, Readable } from 'node:stream'
import { test } from 'node:test'
import { VolumeFileError, type VolumeFiles } from '../../../src/contract/volumes/volume-protocol.ts'
import { makeVolumeClient } from '../../../src/control/volumes/volume-client.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { makeAlignedBuffers } from '../../../src/worker/volumes/content-writer.ts'
import { makeVolumeFiles } from '../../../src/worker/volumes/volume-files.ts'
import { serveVolume } from '../../../src/worker/volumes/serve-volume.ts'
import { contentFrom, isRoot, namesBeneath, refusal, textOf, UID_SHIFT } from './volume-folder.ts'

const MIB = 1024 * 1024
const hasBtrfs = spawnSync('mkfs.btrfs', ['--version']).status === 0

test(
  'a full file system refuses an upload while it arrives, reports it, and keeps the old file',
  { timeout: 20_000 },
  (t) => {
    if (!isRoot) return t.skip('needs root: it mounts a small file system')
    return withMount(['-t', 'tmpfs', '-o', 'size=4m', 'tmpfs'], (root) =>
      fillUp(makeVolumeFiles({ root, uidShift: UID_SHIFT, random: systemRandom }), root),
    )
  },
)

test(
  'a volume at its btrfs cap refuses an upload, and a copy within it shares its blocks',
  { timeout: 30_000 },
  (t) => {
    if (!isRoot) return t.skip('needs root: it mounts a small file system')
    if (!hasBtrfs) return t.skip('mkfs.btrfs is not installed')
    const dir = mkdtempSync(join(tmpdir(), 'sandyard-btrfs-'))
    const image = join(dir, 'image')
    execFileSync('truncate', ['-s', '128M', image])
    execFileSync('mkfs.btrfs', ['-q', '-M', image])
    return withMount(['-o', 'loop', image], async (mounted) => {
      const root = join(mounted, 'volume')
      execFileSync('btrfs', ['-q', 'subvolume', 'create', root])
      execFileSync('btrfs', ['quota', 'enable', mounted])
      execFileSync('btrfs', ['qgroup', 'limit', String(8 * MIB), root])
      const buffers = makeAlignedBuffers()
      await fillUp(makeVolumeFiles({ root, uidShift: UID_SHIFT, random: systemRandom, buffers }), root)
      const files = makeVolumeFiles({ root, uidShift: UID_SHIFT, random: systemRandom })
      await fillUp(files, root)
      await files.write('/large', bytes(5 * MIB))
      for (const copy of ['/1', '/2', '/3']) await files.copy('/large', copy)
      assert.equal((await files.stat('/3')).size, 5 * MIB)
      assert.equal((await files.stat('/3')).mode, 0o100644)
      await assert.rejects(files.write('/4', bytes(5 * MIB)), refusal('quota_exceeded'))
    }).finally(() => {
      rmSync(dir, { recursive: true })
    })
  },
)

async function fillUp(files: VolumeFiles, root: string): Promise<void> {
  const client = makeVolumeClient(() => {
    const [near, far] = duplexPair()
    void serveVolume(far, files, { log: makeLog('silent'), onChanged: () => undefined })
    return Promise.resolve(near)
  })
  await client.write('/file', contentFrom('old'))
  for (const path of ['/file', '/new/file']) {
    const content = bytes(Infinity)
    await assert.rejects(client.write(path, content), (error: unknown) => {
      assert.ok(error instanceof VolumeFileError && error.message.includes('cap'))
      return refusal('quota_exceeded')(error)
    })
    assert.equal(content.destroyed, false)
    content.destroy()
    assert.deepEqual(namesBeneath(root), ['file'])
  }
  assert.equal(await textOf(client, '/file'), 'old')
  await client.remove('/file', { isRecursive: false })
}

/** A stream of this many random bytes. */
function bytes(sizeBytes: number): Readable {
  let left = sizeBytes
  return new Readable({
    read() {
      const size = Math.min(left, 64 * 1024)
      left -= size
      this.push(size === 0 ? null : systemRandom.bytes(size))
    },
  })
}

async function withMount(args: readonly string[], use: (mounted: string) => Promise<void>): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'sandyard-mount-'))
  const mounted = join(dir, 'mounted')
  mkdirSync(mounted)
  execFileSync('mount', [...args, mounted])
  try {
    await use(mounted)
  } finally {
    execFileSync('umount', [mounted])
    rmSync(dir, { recursive: true })
  }
}

import assert from 'node:assert/strict'
import { chmod, lstat, mkdir, readdir, readFile, readlink, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { runCommand } from '../../../../src/lib/run-command.ts'
import { DEFAULT_IMAGE_LIMITS } from '../../../../src/worker/images/image.ts'
import { makeImageBudget } from '../../../../src/worker/images/image-budget.ts'
import { unpackLayer } from '../../../../src/worker/images/layers/unpack.ts'
import { makeLayerTar, sha256, type TestEntry } from '../../../support/test-image.ts'
import { makeFolder, NEEDS_ROOT, UID_SHIFT } from '../setup.ts'

const COMMAND = { timeoutMs: 10_000 }

async function* inPieces(bytes: Buffer): AsyncGenerator<Buffer> {
  // The size is often no multiple of 512, so that some headers span two pieces.
  const pieceBytes = Math.max(100, Math.min(65_536, bytes.length >> 3))
  for (let at = 0; at < bytes.length; at += pieceBytes) {
    yield bytes.subarray(at, at + pieceBytes)
    await setImmediate()
  }
}

async function unpack(
  into: string,
  layer: readonly TestEntry[] | Buffer,
  limits = DEFAULT_IMAGE_LIMITS,
): Promise<string> {
  const tar = Buffer.isBuffer(layer) ? layer : await makeLayerTar(layer)
  await mkdir(into, { recursive: true })
  const diffId = await unpackLayer(() => inPieces(tar), {
    into,
    uidShift: UID_SHIFT,
    limits,
    budget: { ...makeImageBudget('image a', limits).beginLayer('a'), check: () => Promise.resolve() },
    signal: AbortSignal.timeout(20_000),
  })
  assert.equal(diffId, sha256(tar))
  return into
}

/** Mounts layers, the lowest first, as one overlay, as a sandbox's root file system is mounted. */
async function inOverlay(
  dir: string,
  layers: readonly string[],
  look: (merged: string) => Promise<void>,
): Promise<void> {
  const merged = join(dir, 'merged')
  await mkdir(merged)
  await runCommand(
    'mount',
    ['-t', 'overlay', 'overlay', '-o', `lowerdir=${[...layers].reverse().join(':')}`, merged],
    COMMAND,
  )
  try {
    await look(merged)
  } finally {
    await runCommand('umount', [merged], COMMAND)
  }
}

test(
  'entries keep content, mode, set-user-id bits, times and links; all owners are shifted, including those of parents',
  { skip: NEEDS_ROOT },
  async (t) => {
    const dir = await unpack(join(await makeFolder(t), 'layer'), [
      { path: './', type: 'directory', mode: 0o711, uid: 1 },
      { path: 'deep/er/file', content: 'data', mode: 0o4755, uid: 1000, gid: 65_535 },
      { path: 'shadow', content: 'x', mode: 0 },
      { path: 'hard', type: 'link', target: '/deep/er/file' },
      { path: 'soft', type: 'symlink', target: '/etc/passwd', uid: 5 },
      { path: 'pipe', type: 'fifo', mode: 0o600 },
      { path: `${'long/'.repeat(60)}ünïcode name`, content: 'u' },
      { path: 'pax-owner', uid: 0, pax: { uid: '42', gid: '43' } },
      { path: 'dev/sda', type: 'block-device' },
      { path: 'dev/null', type: 'character-device' },
      { path: 'empty' },
    ])
    const file = await stat(join(dir, 'deep/er/file'))
    assert.deepEqual(
      [file.mode & 0o7777, file.uid, file.gid, file.nlink],
      [0o4755, UID_SHIFT + 1000, UID_SHIFT + 65_535, 2],
    )
    assert.equal(file.mtimeMs, 0)
    assert.equal((await stat(join(dir, 'hard'))).ino, file.ino)
    const root = await stat(dir)
    assert.deepEqual([root.mode & 0o7777, root.uid], [0o711, UID_SHIFT + 1])
    const parent = await stat(join(dir, 'deep/er'))
    assert.deepEqual([parent.mode & 0o7777, parent.uid, parent.gid], [0o755, UID_SHIFT, UID_SHIFT])
    assert.equal((await stat(join(dir, 'shadow'))).mode & 0o7777, 0)
    assert.equal(await readlink(join(dir, 'soft')), '/etc/passwd')
    assert.equal((await lstat(join(dir, 'soft'))).uid, UID_SHIFT + 5)
    assert.ok((await stat(join(dir, 'pipe'))).isFIFO())
    assert.equal(await readFile(join(dir, 'long/'.repeat(60), 'ünïcode name'), 'utf8'), 'u')
    assert.deepEqual(
      [(await stat(join(dir, 'pax-owner'))).uid, (await stat(join(dir, 'pax-owner'))).gid],
      [UID_SHIFT + 42, UID_SHIFT + 43],
    )
    assert.deepEqual(await readdir(join(dir, 'dev')), [])
    assert.equal((await stat(join(dir, 'empty'))).size, 0)
  },
)

test(
  'whiteouts and opaque folders hide lower layers in a mounted overlay, and only lower layers',
  { skip: NEEDS_ROOT },
  async (t) => {
    const dir = await makeFolder(t)
    const low = await unpack(join(dir, 'low'), [
      { path: 'gone', content: 'g' },
      { path: 'tree/a/b', content: 'b' },
      { path: 'opaque/old', content: 'o' },
      { path: 'opaque/sub/old', content: 'o' },
      { path: 'again/old', content: 'o' },
      { path: 'file', content: 'low' },
      { path: 'kept', content: 'k', uid: 9 },
    ])
    const high = await unpack(join(dir, 'high'), [
      { path: '.wh.gone' },
      { path: 'tree/.wh.a' },
      { path: 'opaque/new', content: 'n' },
      { path: 'opaque/.wh..wh..opq' },
      { path: '.wh.again' },
      { path: 'again/new', content: 'n' },
      { path: 'file', content: 'high' },
      { path: '.wh.file' },
      { path: '.wh..wh.plnk/1' },
      { path: '.wh..wh.aufs' },
    ])
    await inOverlay(dir, [low, high], async (merged) => {
      assert.deepEqual((await readdir(merged)).sort(), ['.wh..wh.plnk', 'again', 'file', 'kept', 'opaque', 'tree'])
      assert.deepEqual(await readdir(join(merged, 'tree')), [])
      assert.deepEqual(await readdir(join(merged, 'opaque')), ['new'])
      assert.deepEqual(await readdir(join(merged, 'again')), ['new'])
      assert.equal(await readFile(join(merged, 'file'), 'utf8'), 'high')
      assert.equal((await stat(join(merged, 'kept'))).uid, UID_SHIFT + 9)
    })
  },
)

test(
  'a path through a symlink of its own layer lands inside the layer, wherever the symlink points',
  { skip: NEEDS_ROOT },
  async (t) => {
    const outside = await makeFolder(t)
    await chmod(outside, 0o777)
    await writeFile(join(outside, 'victim'), 'untouched')
    const dir = join(await makeFolder(t), 'layer')
    await unpack(dir, [
      { path: 'usr/bin', type: 'directory' },
      { path: 'bin', type: 'symlink', target: 'usr/bin' },
      { path: 'bin/sh', content: 'sh' },
      { path: 'out', type: 'symlink', target: outside },
      { path: 'out/victim', content: 'overwritten' },
      { path: 'up', type: 'symlink', target: '../../../../../..' },
      { path: `up${outside}/victim`, content: 'overwritten' },
      { path: 'twin', type: 'link', target: 'out' },
      { path: 'twin/victim', content: 'overwritten' },
      { path: '/absolute', content: 'a' },
      { path: 'out/.wh.victim2' },
      { path: 'linked', type: 'link', target: 'out/victim' },
    ])
    assert.equal(await readFile(join(dir, 'usr/bin/sh'), 'utf8'), 'sh')
    assert.equal(await readFile(join(outside, 'victim'), 'utf8'), 'untouched')
    assert.deepEqual(await readdir(outside), ['victim'])
    assert.equal(await readFile(join(dir, outside, 'victim'), 'utf8'), 'overwritten')
    assert.equal(await readFile(join(dir, 'absolute'), 'utf8'), 'a')
  },
)

const HOSTILE: Readonly<Record<string, readonly TestEntry[]>> = {
  'a path that climbs out': [{ path: '../evil' }],
  'a path that climbs out in the middle': [{ path: 'a/../../evil' }],
  'a hard link to a file of the host': [{ path: 'evil', type: 'link', target: '/etc/shadow' }],
  'a hard link that climbs out': [{ path: 'evil', type: 'link', target: '../../../etc/shadow' }],
  'a hard link to a folder': [
    { path: 'd', type: 'directory' },
    { path: 'evil', type: 'link', target: 'd' },
  ],
  'a whiteout of the folder above': [{ path: 'a/.wh...' }],
  'a whiteout without a name': [{ path: 'a/.wh.' }],
  'an owner that no sandbox has': [{ path: 'a', uid: 65_536 }],
  'an owner in a PAX record that no sandbox has': [{ path: 'a', pax: { uid: '-1' } }],
  'an owner that is no number': [{ path: 'a', pax: { gid: 'x' } }],
  'a loop of symlinks': [
    { path: 'a', type: 'symlink', target: 'b' },
    { path: 'b', type: 'symlink', target: 'a' },
    { path: 'a/x' },
  ],
  'a file as a folder': [{ path: 'a', content: 'x' }, { path: 'a/b' }],
  'a folder that becomes a symlink': [{ path: 'a/b' }, { path: 'a', type: 'symlink', target: '/etc' }, { path: 'a/c' }],
  'an overlong name': [{ path: 'n'.repeat(256) }],
  'a sparse file': [{ path: 'a', content: 'x', pax: { 'GNU.sparse.major': '1' } }],
}

for (const [what, entries] of Object.entries(HOSTILE)) {
  test(`a layer with ${what} is refused`, { skip: NEEDS_ROOT }, async (t) => {
    const dir = join(await makeFolder(t), 'layer')
    await assert.rejects(unpack(dir, entries), { reason: 'image' })
  })
}

test(
  'extended attributes of an image never reach the disk, so it can’t control the overlay',
  { skip: NEEDS_ROOT },
  async (t) => {
    const dir = await makeFolder(t)
    const xattrs = { 'SCHILY.xattr.trusted.overlay.opaque': 'y', 'SCHILY.xattr.trusted.overlay.redirect': '/etc' }
    const low = await unpack(join(dir, 'low'), [{ path: 'd/low', content: 'l' }])
    const high = await unpack(join(dir, 'high'), [
      { path: 'd', type: 'directory', pax: xattrs },
      { path: 'd/high', content: 'h' },
    ])
    await inOverlay(dir, [low, high], async (merged) => {
      assert.deepEqual((await readdir(join(merged, 'd'))).sort(), ['high', 'low'])
    })
  },
)

test('a layer beyond the limits of files, names or size is refused', { skip: NEEDS_ROOT }, async (t) => {
  const dir = await makeFolder(t)
  const entries = Array.from({ length: 20 }, (_, index) => ({ path: `f${String(index)}`, content: 'x'.repeat(100) }))
  for (const limit of [{ filesPerImage: 19 }, { nameBytesPerLayer: 20 }, { unpackedImageBytes: 10_000 }]) {
    const into = join(dir, Object.keys(limit).join(''))
    await assert.rejects(unpack(into, entries, { ...DEFAULT_IMAGE_LIMITS, ...limit }), { reason: 'image' })
  }
})

test(
  'a tar without the final padding and end blocks is accepted, a broken one is refused',
  { skip: NEEDS_ROOT },
  async (t) => {
    const dir = await makeFolder(t)
    const tar = await makeLayerTar([{ path: 'a', content: 'abc' }])
    await unpack(join(dir, 'open-ended'), tar.subarray(0, 512 + 3))
    assert.equal(await readFile(join(dir, 'open-ended/a'), 'utf8'), 'abc')
    const big = await makeLayerTar([{ path: 'a', content: 'x'.repeat(10_000) }])
    await assert.rejects(unpack(join(dir, 'cut'), big.subarray(0, 3000)), {
      reason: 'image',
      message: /not a valid tar/,
    })
    await assert.rejects(unpack(join(dir, 'noise'), Buffer.alloc(4096, 7)), {
      reason: 'image',
      message: /not a valid tar/,
    })
  },
)

test('a large layer does not block the event loop', { skip: NEEDS_ROOT }, async (t) => {
  const dir = await makeFolder(t)
  const content = Buffer.alloc(20_000, 1)
  const tar = await makeLayerTar(
    Array.from({ length: 3_000 }, (_, index) => ({ path: `d${String(index % 50)}/f${String(index)}`, content })),
  )
  // Processor time, because a busy machine may take the processor away in the middle of any turn.
  const usedMs = (): number => (process.threadCpuUsage().user + process.threadCpuUsage().system) / 1_000
  let lastMs = usedMs()
  let longestMs = 0
  const timer = setInterval(() => {
    const nowMs = usedMs()
    longestMs = Math.max(longestMs, nowMs - lastMs)
    lastMs = nowMs
  }, 5)
  const start = performance.now()
  await unpack(join(dir, 'big'), tar)
  clearInterval(timer)
  t.diagnostic(
    `60 MB, 3000 files: ${(performance.now() - start).toFixed(0)} ms, longest turn ${longestMs.toFixed(0)} ms`,
  )
  assert.ok(longestMs < 500, `the event loop was held for ${String(longestMs)} ms`)
  await rm(join(dir, 'big'), { recursive: true })
})

import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import {
  chownSync,
  lchownSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../../../src/lib/clock.ts'
import { exportImage } from '../../../../src/worker/drivers/microsandbox/export-image.ts'
import { makeMsbCli } from '../../../../src/worker/drivers/microsandbox/msb-cli.ts'
import { isFolderMissing } from '../../../../src/worker/drivers/microsandbox/mount-sources.ts'
import { openVmImages } from '../../../../src/worker/drivers/microsandbox/vm-images.ts'

const UID_SHIFT = 200_000

describe('an image that is imported', { skip: process.getuid?.() === 0 ? false : 'needs root' }, () => {
  let dir: string
  const layers = (): readonly string[] => [join(dir, 'below'), join(dir, 'above')]

  before(() => {
    dir = mkdtempSync(join(tmpdir(), 'sandyard-export-'))
    const [below = '', above = ''] = layers()
    for (const folder of [join(below, 'etc'), join(above, 'etc')]) mkdirSync(folder, { recursive: true })
    writeFileSync(join(below, 'etc/removed'), 'x')
    writeFileSync(join(below, 'etc/changed'), 'old')
    writeFileSync(join(below, 'etc/kept'), 'kept')
    linkSync(join(below, 'etc/kept'), join(below, 'etc/same'))
    symlinkSync('kept', join(below, 'etc/link'))
    writeFileSync(join(above, 'etc/changed'), 'new')
    // The device 0:0 is a whiteout, by which an overlay marks a deleted file.
    execFileSync('mknod', [join(above, 'etc/removed'), 'c', '0', '0'])
    for (const layer of layers()) execFileSync('chown', ['-Rh', `${String(UID_SHIFT)}:${String(UID_SHIFT)}`, layer])
    chownSync(join(below, 'etc/kept'), UID_SHIFT + 1000, UID_SHIFT + 65_534)
    lchownSync(join(below, 'etc/link'), UID_SHIFT + 7, UID_SHIFT)
  })
  after(() => {
    rmSync(dir, { recursive: true, force: true })
  })

  test('has the files of all its layers, with the owners of the image', async () => {
    const folder = join(dir, 'export')
    const config = { env: ['A=1'], entrypoint: ['/e'], cmd: null, workdir: '/w', user: '7' }
    const image = { reference: 'a', digest: `sha256:${'0'.repeat(64)}`, config, layers: layers() }
    const signal = new AbortController().signal
    const archive = await exportImage(image, { folder, uidShift: UID_SHIFT, clock: systemClock, signal })
    const root = join(dir, 'root')
    mkdirSync(root)
    execFileSync('tar', ['-xf', archive, '-C', root])
    const blobs = join(root, 'blobs/sha256')
    const run = (script: string): string => execFileSync('sh', ['-c', script], { cwd: blobs, encoding: 'utf8' })
    const listed = run('for blob in *; do tar -tvf $blob --numeric-owner 2>/dev/null; done; true')
    assert.match(listed, /^-\S+ 1000\/65534 .* \.\/etc\/kept$/m)
    assert.match(listed, /^h\S+ 1000\/65534 .* \.\/etc\/same link to \.\/etc\/kept$/m)
    assert.match(listed, /^l\S+ 7\/0 .* \.\/etc\/link -> kept$/m)
    assert.match(listed, /^-\S+ 0\/0 .* 3 .* \.\/etc\/changed$/m)
    assert.doesNotMatch(listed, /removed|\b20\d{4}\b/)
    const document = run('cat $(grep -l Entrypoint *)')
    assert.match(document, /"Env":\["A=1"\],"Entrypoint":\["\/e"\],"WorkingDir":"\/w","User":"7"/)
  })

  test('is removed, with its mount, by the next worker if the import was interrupted', async () => {
    const left = join(dir, 'driver', 'exports', 'image-x', 'merged')
    mkdirSync(left, { recursive: true })
    const [below = '', above = ''] = layers()
    execFileSync('mount', ['-t', 'overlay', 'overlay', '-o', `ro,lowerdir=${above}:${below}`, left])
    const msb = makeMsbCli({ msb: 'not asked', version: '0' }, dir)
    await openVmImages({ dir: join(dir, 'driver'), uidShift: UID_SHIFT, msb, clock: systemClock })
    assert.deepEqual(readdirSync(join(dir, 'driver', 'exports')), [])
    assert.equal(readFileSync(join(above, 'etc/changed'), 'utf8'), 'new')
  })

  test('lacks a working folder only if no layer has it and no part of the path is a symlink', async () => {
    const answers = await Promise.all(['/etc', '/etc/new', '/etc/link/x', '/srv/a', '/', '/a/../etc'].map((path) => isFolderMissing(layers(), path))) // prettier-ignore
    assert.deepEqual(answers, [false, true, false, true, false, false])
  })
})

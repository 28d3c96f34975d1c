import assert from 'node:assert/strict'
import { closeSync, openSync, readFileSync, writeFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { after, afterEach, before, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { DiskImageFormat, Mount } from '../../../../src/domain/spec/spec.ts'
import { runCommand, type CommandResult } from '../../../../src/lib/run-command.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { imageServersOf, makeContent, makeExt4, ownBySandboxes, whyNoDiskImages } from '../../../support/disk-images.ts'
import { assertMountRefused, diskImage, desiredRunWithMounts } from '../../../support/mounts.ts'
import { makeOciFixture, type OciFixture } from '../../../support/oci-driver.ts'

const NEVER = new AbortController().signal
const skip = whyNoDiskImages(['qemu-storage-daemon', 'qemu-img', 'squashfuse', 'mksquashfs']) ?? false
let fixture: OciFixture
let driver: Driver

describe('formats of disk images of the oci driver', { skip, timeout: 120_000 }, () => {
  before(async () => {
    fixture = await makeOciFixture()
    driver = await fixture.open()
  })
  afterEach(async () => {
    for (const run of await driver.list()) await driver.remove(run.run_id)
    assert.deepEqual(await fixture.leftovers(), [])
  })
  after(async () => {
    await driver.close()
    await fixture.remove()
  })

  for (const format of ['qcow2', 'vmdk'] as const) {
    test(`a sandbox reads and writes an image in the format ${format}, which is whole after its end`, async () => {
      await makeExt4(fixture, 'd.img', { greeting: 'hello\n' })
      await convert('d.img', `d.${format}`, format)
      const mounts = [diskImage(`d.${format}`, '/disk', { format, fstype: 'ext4' })]
      const first = await start(mounts)
      assert.equal((await inside(first, 'cat /disk/greeting')).stdout, 'hello\n')
      await inside(first, 'dd if=/dev/urandom of=/disk/big bs=64k count=16; echo kept >/disk/mine')
      await driver.remove(first.run_id)
      await qemuImg(['check', '-f', format, join(fixture.volume, `d.${format}`)])
      const readonly = await start([{ ...mounts[0], options: { ...PLAIN, readonly: true } } as Mount])
      assert.equal((await inside(readonly, 'cat /disk/mine')).stdout, 'kept\n')
      assert.match((await inside(readonly, 'echo x >/disk/mine')).stderr, /Read-only file system/)
    })
  }

  test('a squashfs image and a compressed vmdk are mounted readonly, and refused otherwise', async () => {
    const folder = makeContent(fixture, { greeting: 'hello\n' })
    const image = join(fixture.volume, 's.img')
    await runCommand('mksquashfs', [folder, image, '-quiet', '-noappend'], { timeoutMs: 20_000 })
    ownBySandboxes(fixture, 's.img')
    await makeExt4(fixture, 'd.img', { greeting: 'hello\n' })
    await convert('d.img', 's.vmdk', 'vmdk', ['-o', 'subformat=streamOptimized'])
    const box = await start([
      diskImage('s.img', '/one', { readonly: true, fstype: 'squashfs' }),
      diskImage('s.vmdk', '/two', { readonly: true, format: 'vmdk' }),
    ])
    assert.equal((await inside(box, 'cat /one/greeting /two/greeting')).stdout, 'hello\nhello\n')
    await driver.remove(box.run_id)
    await assertRefused([diskImage('s.img', '/disk')], /squashfs is always readonly/)
    await assertRefused(
      [diskImage('s.vmdk', '/disk', { format: 'vmdk' })],
      /streamOptimized can only be mounted readonly/,
    )
  })

  test('an image that names another file is refused, whatever the file', async () => {
    await makeExt4(fixture, 'd.img')
    const base = join(fixture.volume, 'd.img')
    await create('backed.qcow2', ['-f', 'qcow2', '-b', base, '-F', 'raw'])
    await create('host.qcow2', ['-f', 'qcow2', '-u', '-b', '/etc/shadow', '-F', 'raw'], '16M')
    await create('data.qcow2', ['-f', 'qcow2', '-o', `data_file=${join(fixture.volume, 'data.raw')}`], '16M')
    await create('flat.vmdk', ['-f', 'vmdk', '-o', 'subformat=monolithicFlat'], '16M')
    await create('split.vmdk', ['-f', 'vmdk', '-o', 'subformat=twoGbMaxExtentSparse'], '16M')
    await create('parent.vmdk', ['-f', 'vmdk'], '16M')
    await create('child.vmdk', ['-f', 'vmdk', '-b', join(fixture.volume, 'parent.vmdk'), '-F', 'vmdk'])
    writeFileSync(
      join(fixture.volume, 'shadow.vmdk'),
      '# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType="monolithicFlat"\nRW 8 FLAT "/etc/shadow" 0\n',
    )
    const refusals: readonly (readonly [string, RegExp])[] = [
      ['backed.qcow2', /it has a backing file/],
      ['host.qcow2', /it has a backing file/],
      ['data.qcow2', /its data is in another file/],
      ['flat.vmdk', /its data is in other files/],
      ['split.vmdk', /its data is in other files/],
      ['child.vmdk', /it has a parent image/],
      ['shadow.vmdk', /its data is in other files/],
    ]
    for (const [name, message] of refusals) {
      ownBySandboxes(fixture, name)
      const format = name.endsWith('vmdk') ? 'vmdk' : 'qcow2'
      await assertRefused([diskImage(name, '/disk', { format, readonly: true })], message)
    }
  })

  test('an embedded vmdk descriptor that names another file is refused, also when the header says that there is no data', async () => {
    await makeExt4(fixture, 'd.img')
    await convert('d.img', 'd.vmdk', 'vmdk')
    const image = join(fixture.volume, 'd.vmdk')
    const original = readFileSync(image)
    const extent = original.indexOf('RW ')
    const end = original.indexOf('\n', extent)
    const lines = {
      'RW 8 FLAT "/etc/shadow" 0': /more than one file|not one file/,
      'RW 8 SPARSE "a"\nRW 8 SPARSE "b"': /more than one/,
    }
    for (const [line, message] of Object.entries(lines)) {
      writeFileSync(image, original)
      const text = line.includes('FLAT')
        ? original.subarray(512, 2048).toString('latin1').replace('monolithicSparse', 'monolithicFlat\0\0')
        : `${original.subarray(512, extent).toString('latin1')}${line}${original.subarray(end, 2048).toString('latin1')}`
      writeAt(image, 512, Buffer.from(text.slice(0, 1536), 'latin1'))
      await assertRefused([diskImage('d.vmdk', '/disk', { format: 'vmdk', readonly: true })], message)
    }
    writeFileSync(image, original)
    writeAt(image, 12, Buffer.alloc(8)) // the capacity: with 0, a reader takes the descriptor's word for everything
    await assertRefused([diskImage('d.vmdk', '/disk', { format: 'vmdk', readonly: true })], /descriptor is missing/)
  })

  test('a damaged qcow2 image is refused or gives errors, and the program that reads it can open no other file', async () => {
    await makeExt4(fixture, 'd.img', { greeting: 'hello\n' })
    await convert('d.img', 'd.qcow2', 'qcow2')
    const box = await start([diskImage('d.qcow2', '/disk', { format: 'qcow2' })])
    const servers = imageServersOf(box)
    assert.equal(servers.length, 3) // the parent, the translator, and the server of the file system
    for (const server of servers) {
      const status = readFileSync(`/proc/${String(server)}/status`, 'utf8')
      assert.match(status, /^CapEff:\s+0+$/m)
      assert.match(status, /^NoNewPrivs:\s+1$/m)
    }
    const translator = servers.find((pid) => readFileSync(`/proc/${String(pid)}/comm`, 'utf8').startsWith('qemu')) ?? 0
    process.kill(translator, 'SIGKILL')
    assert.notEqual((await inside(box, 'cat /disk/greeting; echo x >/disk/new && sync /disk/new')).code, 0)
    await driver.remove(box.run_id)
    writeAt(join(fixture.volume, 'd.qcow2'), 40, Buffer.alloc(8, 0xff)) // the place of the first table
    await assertRefused([diskImage('d.qcow2', '/disk', { format: 'qcow2' })], /'d\.qcow2': qemu-storage-daemon/)
  })
})

const PLAIN = { readonly: false, noexec: false, nosuid: false, nodev: false }

async function qemuImg(args: readonly string[]): Promise<void> {
  await runCommand('qemu-img', args, { timeoutMs: 20_000 })
}

async function create(name: string, options: readonly string[], size?: string): Promise<void> {
  await qemuImg(['create', '-q', ...options, join(fixture.volume, name), ...(size === undefined ? [] : [size])])
}

async function convert(
  from: string,
  to: string,
  format: DiskImageFormat,
  options: readonly string[] = [],
): Promise<void> {
  const paths = [from, to].map((name) => join(fixture.volume, name))
  await qemuImg(['convert', '-f', 'raw', '-O', format, ...options, ...paths])
  ownBySandboxes(fixture, to)
}

async function start(mounts: readonly Mount[]): Promise<DesiredRun> {
  const desired = desiredRunWithMounts(mounts)
  await driver.start(desired, NEVER)
  return desired
}

async function assertRefused(mounts: readonly Mount[], message: RegExp): Promise<void> {
  await assert.rejects(start(mounts), (error) => assertMountRefused(error, message))
}

function inside(run: DesiredRun, script: string): Promise<CommandResult> {
  return fixture.exec(run.run_id, ['sh', '-c', script])
}

function writeAt(path: string, position: number, bytes: Buffer): void {
  const file = openSync(path, 'r+')
  writeSync(file, bytes, 0, bytes.length, position)
  closeSync(file)
}

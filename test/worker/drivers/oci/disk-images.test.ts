import assert from 'node:assert/strict'
import {
  chmodSync,
  closeSync,
  existsSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import { after, afterEach, before, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { Mount, SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import { runCommand, type CommandResult } from '../../../../src/lib/run-command.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { checkProgram, checkWorkdir } from '../../../../src/worker/drivers/oci/rootfs/check-program.ts'
import { imageServersOf, makeExt4, ownBySandboxes, whyNoDiskImages } from '../../../support/disk-images.ts'
import { assertMountRefused, bind, diskImage, desiredRunWithMounts } from '../../../support/mounts.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { makeOciFixture, type OciFixture } from '../../../support/oci-driver.ts'

const NEVER = new AbortController().signal
let fixture: OciFixture
let driver: Driver

describe('disk images of the oci driver', { skip: whyNoDiskImages() ?? false, timeout: 120_000 }, () => {
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

  test('a sandbox reads a file of an ext4 image, and its own file is there after a restart', async () => {
    await makeExt4(fixture, 'disks/d.img', { greeting: 'hello\n' })
    const mounts = [diskImage('disks/d.img', '/disk')]
    const first = await start(mounts)
    assert.equal((await inside(first, 'cat /disk/greeting')).stdout, 'hello\n')
    await inside(first, 'echo kept >/disk/mine; chown 1000:50 /disk/mine; chmod 640 /disk/mine')
    await driver.remove(first.run_id)
    const second = await start(mounts, first)
    assert.equal((await inside(second, 'cat /disk/mine; stat -c %u:%g:%a /disk/mine')).stdout, 'kept\n1000:50:640\n')
  })

  test('a readonly image refuses writes and has many readers, and an image has one writer', async () => {
    await makeExt4(fixture, 'd.img', { greeting: 'hello\n' })
    const one = await start([diskImage('d.img', '/disk', { readonly: true })])
    const two = await start([
      diskImage('d.img', '/disk', { readonly: true }),
      diskImage('d.img', '/again', { readonly: true }),
    ])
    assert.match((await inside(one, 'echo x >/disk/new')).stderr, /Read-only file system/)
    assert.equal((await inside(two, 'cat /disk/greeting /again/greeting')).stdout, 'hello\nhello\n')
    await assertRefused([diskImage('d.img', '/disk')], /'\/disk' .*'d\.img': it is mounted elsewhere; only a readonly/)
    await driver.remove(one.run_id)
    await driver.remove(two.run_id)
    const writer = await start([diskImage('d.img', '/disk')])
    await assertRefused(
      [diskImage('d.img', '/disk', { readonly: true })],
      /'d\.img': it is mounted read-write elsewhere/,
    )
    assert.equal((await inside(writer, 'cat /disk/greeting')).stdout, 'hello\n')
  })

  test('noexec and nosuid hold, no device of an image opens, and no process removes an option', async () => {
    const image = await makeExt4(fixture, 'd.img')
    const commands = ['write /usr/bin/id id', 'sif id mode 0104755', 'mknod zero c 1 5', 'sif zero mode 020666']
    for (const command of commands) await runCommand('debugfs', ['-w', '-R', command, image], { timeoutMs: 5000 })
    const open = await start([diskImage('d.img', '/disk', { readonly: true })])
    const strict = await start([diskImage('d.img', '/disk', { readonly: true, noexec: true, nosuid: true })])
    const asAlice = 'setpriv --reuid 1000 --clear-groups /disk/id -u'
    assert.equal((await inside(open, asAlice)).stdout, '0\n')
    assert.match((await inside(strict, '/disk/id')).stderr, /Permission denied/)
    assert.match((await inside(open, 'head -c 1 /disk/zero')).stderr, /Permission denied/)
    for (const command of ['mount -o remount,bind,rw /disk', 'mount -o remount,rw /disk', 'umount -l /disk'])
      assert.notEqual((await inside(strict, command)).code, 0, command)
  })

  test('users of a sandbox have the rights that the modes in the image give them', async () => {
    await makeExt4(fixture, 'd.img')
    const box = await start([diskImage('d.img', '/disk')])
    const alice = 'setpriv --reuid 1000 --regid 1000 --clear-groups sh -c'
    await inside(box, 'mkdir -m 777 /disk/all; echo x >/disk/private; chmod 600 /disk/private')
    assert.match((await inside(box, `${alice} 'cat /disk/private'`)).stderr, /Permission denied/)
    await inside(box, `${alice} 'echo y >/disk/all/own'`)
    assert.equal((await inside(box, 'stat -c %u:%g /disk/all/own; cat /disk/all/own')).stdout, '1000:1000\ny\n')
  })

  test('what is no image of a known file system is refused with the reason', async () => {
    await makeExt4(fixture, 'd.img')
    writeVolumeFile('text', 'no file system')
    writeVolumeFile('empty', '')
    const damaged = await makeExt4(fixture, 'damaged.img')
    writeAt(damaged, 1024 + 1000, Buffer.alloc(3000, 0xff)) // behind the superblock's fields: the table of groups
    writeAt(damaged, 1024, Buffer.alloc(56, 0xff))
    const refusals: readonly (readonly [Mount, RegExp])[] = [
      [diskImage('missing.img', '/disk'), /'missing\.img'/],
      [diskImage('/', '/disk'), /is not a file/],
      [diskImage('text', '/disk'), /'text': it has no file system that can be mounted here; accepted: ext2, ext3/],
      [diskImage('empty', '/disk'), /no file system/],
      [diskImage('d.img', '/disk', { fstype: 'xfs' }), /its file system is ext4, not xfs/],
      [diskImage('damaged.img', '/disk'), /its file system is damaged/],
      [diskImage('damaged.img', '/disk', { readonly: true }), /'damaged\.img': .*checksum does not match/],
      [diskImage('d.img', '/disk', { format: 'qcow2' }), /it is not in the format qcow2/],
      [diskImage('d.img', '/disk', { format: 'vmdk' }), /it is not in the format vmdk/],
    ]
    for (const [mount, message] of refusals) await assertRefused([mount], message)
    chmodSync(join(fixture.volume, 'd.img'), 0o444)
    await assertRefused([diskImage('d.img', '/disk')], /its owner may not write to it/)
  })

  test('no symlink leads to an image outside of the volume, and one within the volume works', async () => {
    await makeExt4(fixture, 'real/d.img', { greeting: 'hello\n' })
    symlinkSync('real/d.img', join(fixture.volume, 'inner.img'))
    symlinkSync('/etc/hostname', join(fixture.volume, 'absolute.img'))
    symlinkSync('../../../../etc/hostname', join(fixture.volume, 'up.img'))
    for (const name of ['absolute.img', 'up.img'])
      await assertRefused([diskImage(name, '/disk')], /leads through a symlink out of the volume/)
    const box = await start([diskImage('inner.img', '/disk')])
    assert.equal((await inside(box, 'cat /disk/greeting')).stdout, 'hello\n')
  })

  test('content that is damaged gives errors in the sandbox only', async () => {
    const image = await makeExt4(fixture, 'd.img', { greeting: 'hello\n' })
    const box = await start([diskImage('d.img', '/disk')])
    truncateSync(image, 64 * 1024)
    assert.notEqual(
      (
        await inside(
          box,
          'ls /disk/lost+found; cat /disk/greeting && dd if=/dev/zero of=/disk/new bs=64k count=16 conv=fsync',
        )
      ).code,
      0,
    )
    assert.equal((await inside(box, 'echo works')).stdout, 'works\n')
  })

  test('the server of an image is an unprivileged user that reaches nothing but the image', async () => {
    await makeExt4(fixture, 'd.img')
    const box = await start([diskImage('d.img', '/disk')])
    const server = serverOf(box)
    const status = readFileSync(`/proc/${server}/status`, 'utf8')
    const user = fixture.settings.uidRange.first
    assert.ok(Number(/^Uid:\s+(\d+)/m.exec(status)?.[1]) > user, status)
    assert.match(status, /^Cap(Prm|Eff|Amb):\s+0+$/m)
    assert.equal(/^NoNewPrivs:\s+1$/m.test(status), true)
    const names = ['bin', 'dev', 'disk', 'files', 'image', 'lib', 'lib64', 'serve', 'served', 'served-disk', 'usr']
    assert.deepEqual(readdirSync(`/proc/${server}/root`).toSorted(), names)
    for (const name of ['pid', 'net', 'ipc', 'mnt', 'user', 'uts'])
      assert.notEqual(readlinkSync(`/proc/${server}/ns/${name}`), readlinkSync(`/proc/self/ns/${name}`), name)
    assert.match(readFileSync(`/proc/${server}/cgroup`, 'utf8'), new RegExp(`${box.run_id}\\.commands`))
    await driver.remove(box.run_id)
    assert.equal(existsSync(`/proc/${server}/exe`), false)
  })

  test('if the server of an image dies, its files fail, the sandbox runs on, and the next start repairs the image', async () => {
    await makeExt4(fixture, 'd.img')
    const mounts = [diskImage('d.img', '/disk')]
    const box = await start(mounts)
    await inside(box, 'echo kept >/disk/mine; sync /disk/mine; echo lost >/disk/other')
    process.kill(serverOf(box), 'SIGKILL')
    assert.match((await inside(box, 'cat /disk/mine')).stderr, /not connected|Software caused|Input\/output/)
    assert.equal((await inside(box, 'echo works')).stdout, 'works\n')
    await driver.remove(box.run_id)
    const again = await start(mounts, box)
    assert.equal((await inside(again, 'cat /disk/mine')).stdout, 'kept\n')
  })

  test('a server that is stopped delays no other sandbox', async () => {
    await makeExt4(fixture, 'd.img')
    const box = await start([diskImage('d.img', '/disk')])
    const server = serverOf(box)
    process.kill(server, 'SIGSTOP')
    try {
      const other = await start([])
      assert.equal((await inside(other, 'echo works')).stdout, 'works\n')
      assert.equal((await driver.list()).length, 2)
    } finally {
      process.kill(server, 'SIGCONT')
    }
  })

  test('a command may run a program of an image in a folder of it, which the worker itself can not enter', async () => {
    const image = await makeExt4(fixture, 'd.img')
    for (const command of ['write /usr/bin/id id', 'sif id mode 0100755'])
      await runCommand('debugfs', ['-w', '-R', command, image], { timeoutMs: 5000 })
    const box = await start([diskImage('d.img', '/disk')])
    ;(await driver.openChannel(box.run_id)).destroy()
    const { rootPath, uidShift } = fixture.container(box.run_id)
    const root = { path: rootPath, uidShift, hiddenMountPoints: [] }
    const user = { uid: 0, gid: 0, additionalGids: [], home: '/' }
    assert.throws(() => readdirSync(join(rootPath, 'disk')), /EACCES/)
    await checkWorkdir(root, '/disk/folder', user)
    await checkProgram(root, { cmd: '/disk/id', cwd: '/disk', path: '', user })
    assert.equal((await inside(box, 'cd /disk && ./id -u')).stdout, '0\n')
  })

  test('an image is mounted inside a volume, and nothing inside an image', async () => {
    await makeExt4(fixture, 'd.img', { greeting: 'hello\n' })
    const box = await start([bind('folder', '/data'), diskImage('d.img', '/data/disk')], undefined, {
      runtime: { ...DEFAULT_SPEC_FOR_TESTS.runtime, workdir: '/data/disk' },
    })
    assert.equal((await inside(box, 'cat /data/disk/greeting')).stdout, 'hello\n')
    const nested = [diskImage('d.img', '/disk', { readonly: true }), bind('folder', '/disk/inner')]
    await driver.remove(box.run_id)
    await assertRefused(nested, /'\/disk\/inner' .*a mount can't be inside the disk image on '\/disk'/)
  })
})

async function start(mounts: readonly Mount[], again?: DesiredRun, more?: Partial<SandboxSpec>): Promise<DesiredRun> {
  const desired = desiredRunWithMounts(mounts, more)
  const run = again === undefined ? desired : { ...desired, sandbox_id: again.sandbox_id }
  await driver.start(run, NEVER)
  return run
}

function inside(run: DesiredRun, script: string): Promise<CommandResult> {
  return fixture.exec(run.run_id, ['sh', '-c', script])
}

async function assertRefused(mounts: readonly Mount[], message: RegExp): Promise<void> {
  await assert.rejects(start(mounts), (error) => assertMountRefused(error, message))
}

function serverOf(run: DesiredRun): number {
  const [server, ...others] = imageServersOf(run)
  assert.deepEqual([typeof server, others], ['number', []])
  return server ?? 0
}

function writeVolumeFile(name: string, content: string): void {
  writeFileSync(join(fixture.volume, name), content)
  ownBySandboxes(fixture, name)
}

function writeAt(path: string, position: number, bytes: Buffer): void {
  const file = openSync(path, 'r+')
  writeSync(file, bytes, 0, bytes.length, position)
  closeSync(file)
}

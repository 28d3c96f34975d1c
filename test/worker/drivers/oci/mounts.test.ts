import assert from 'node:assert/strict'
import { chownSync, existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, afterEach, before, describe, test } from 'node:test'
import type { RunVolume, DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { Mount } from '../../../../src/domain/spec/spec.ts'
import { tryCommand, type CommandResult } from '../../../../src/lib/run-command.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { assertMountRefused, bind, named, tmpfs, desiredRunWithMounts } from '../../../support/mounts.ts'
import { makeOciFixture, testRuntime, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'

const isGvisor = testRuntime() === 'runsc'
const sharedKernel = { skip: isGvisor ? 'gVisor keeps mounts of its own' : false }
const NEVER = new AbortController().signal
let fixture: OciFixture
let driver: Driver

describe('mounts of the oci driver', { skip: whyNoOci() ?? false, timeout: 120_000 }, () => {
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

  test('a readonly mount refuses writes even from user 0, while another mount of the same volume allows them', async () => {
    const box = await start([named('v', '/data'), named('v', '/frozen', { readonly: true })])
    assert.equal((await inside(box, 'echo x >/data/file && cat /frozen/file')).stdout, 'x\n')
    for (const command of ['echo y >/frozen/file', 'rm /frozen/file', 'mkdir /frozen/new', 'chmod 777 /frozen'])
      assert.match((await inside(box, command)).stderr, /Read-only file system/, command)
    assert.equal(readFileSync(join(fixture.volumeFolder('v'), 'file'), 'utf8'), 'x\n')
  })

  test('a noexec mount runs no program, and a mount without it does', async () => {
    const box = await start([named('v', '/data', { noexec: true }), named('v', '/open')])
    await inside(box, 'cat /usr/bin/id >/data/id; chmod 755 /data/id')
    assert.equal((await inside(box, '/open/id -u')).stdout, '0\n')
    const refused = await inside(box, '/data/id -u')
    assert.match(refused.stderr, /Permission denied/)
    assert.equal(refused.code, 126)
  })

  test('a setuid program gains privileges on a plain mount, and none on a nosuid mount', sharedKernel, async () => {
    const box = await start([named('v', '/data', { nosuid: true }), named('v', '/open')])
    await inside(box, 'cat /usr/bin/id >/data/id; chmod 4755 /data/id')
    const asAlice = 'setpriv --reuid 1000 --clear-groups'
    assert.equal((await inside(box, `${asAlice} /open/id -u`)).stdout, '0\n')
    assert.equal((await inside(box, `${asAlice} /data/id -u`)).stdout, '1000\n')
  })

  test('no process in a sandbox can remove an option of a mount or unmount it', async () => {
    const box = await start([named('v', '/data', { readonly: true, noexec: true, nosuid: true }), tmpfs('/data2')])
    for (const command of ['mount -o remount,bind,rw /data', 'mount --bind /data /data2', 'umount -l /data'])
      assert.notEqual((await inside(box, command)).code, 0, command)
    if (process.arch !== 'x64' || isGvisor) return
    // mount(MS_REMOUNT | MS_BIND), umount2(MNT_DETACH) and mount_setattr by their numbers, as user 0, without the checks of mount(8)
    for (const call of ['165, 0, $at, 0, 4128, 0', '166, $at, 2', '442, -100, $at, 0, $no, 32'])
      assert.equal(
        (
          await fixture.exec(box.run_id, [
            'perl',
            '-e',
            `my ($at, $no) = ("/data", pack("Q4", 0, 1, 0, 0)); syscall(${call}); print $!+0`,
          ])
        ).stdout,
        '1',
        call,
      )
    assert.match((await inside(box, 'echo x >/data/file')).stderr, /Read-only/)
  })

  test('a device file of a volume opens no device', sharedKernel, async () => {
    const box = await start([named('v', '/data')])
    await tryCommand('mknod', ['-m', '666', join(fixture.volumeFolder('v'), 'zero'), 'c', '1', '5'], {
      timeoutMs: 5000,
    })
    assert.match((await inside(box, 'head -c 1 /data/zero')).stderr, /Permission denied/)
  })

  test('every sandbox sees the owners and modes that one sandbox set in a volume', async () => {
    const [one, two] = [await start([named('v', '/data')]), await start([named('v', '/data')])]
    await inside(one, 'echo x >/data/mine; chown 1000:50 /data/mine; chmod 640 /data/mine')
    assert.equal((await inside(two, 'stat -c %u:%g:%a /data/mine /data')).stdout.split('\n')[0], '1000:50:640')
    assert.equal((await inside(two, 'stat -c %u:%g /data')).stdout, '0:0\n')
    assert.equal(statSync(join(fixture.volumeFolder('v'), 'mine')).mode & 0o777, 0o640)
  })

  test('no other user of the machine reaches a mounted volume through its pin', async () => {
    const box = await start([named('v', '/data')])
    await inside(box, 'chmod 777 /data; echo x >/data/open; chmod 666 /data/open')
    const pin = mountSourceOf(box, '/data')
    const other = ['--reuid', '65534', '--clear-groups', 'ls', pin]
    assert.match((await tryCommand('setpriv', other, { timeoutMs: 5000 })).stderr, /Permission denied/)
  })

  test('a bind mount shows a folder of the default volume, created when missing, and nothing above it', async () => {
    mkdirSync(join(fixture.volume, 'other'))
    const box = await start([bind('/a/deep/folder', '/one'), bind('./a', '/two'), bind('/', '/all')])
    await inside(box, 'echo x >/one/file')
    assert.equal(
      (await inside(box, 'cat /two/deep/folder/file; stat -c %u:%a /one; ls /all')).stdout,
      'x\n0:755\na\nother\n',
    )
    assert.equal((await inside(box, 'ls /one/..')).stdout, (await inside(box, 'ls /')).stdout)
  })

  test('a bound folder that is deleted while mounted does not keep its sandbox from ending', async () => {
    const [one, two] = [await start([bind('brief', '/data')]), await start([bind('/', '/all')])]
    await inside(two, 'rm -r /all/brief')
    assert.notEqual((await inside(one, 'echo x >/data/file')).code, 0)
    await driver.remove(one.run_id)
    const again = await start([bind('brief', '/data')])
    assert.equal((await inside(again, 'echo x >/data/file; cat /data/file')).stdout, 'x\n')
  })

  test('a bind mount of a file shows only that file, whether its target exists or not', async () => {
    writeFileSync(join(fixture.volume, 'config'), 'mine\n')
    chownSync(join(fixture.volume, 'config'), fixture.settings.uidShift, fixture.settings.uidShift)
    const box = await start([bind('config', '/etc/passwd', { readonly: true }), bind('config', '/new/folder/config')])
    assert.equal(
      (await inside(box, 'cat /etc/passwd /new/folder/config; ls /new/folder')).stdout,
      'mine\nmine\nconfig\n',
    )
    assert.match((await inside(box, 'echo x >/etc/passwd')).stderr, /Read-only/)
    await inside(box, 'echo more >>/new/folder/config')
    assert.equal(readFileSync(join(fixture.volume, 'config'), 'utf8'), 'mine\nmore\n')
    await refused([bind('config', '/etc')], /'\/etc'.*a file can't be mounted there/)
  })

  test('mounts nest as their paths do, in whatever order the spec lists them', async () => {
    const box = await start(
      [
        named('b', '/data/b/deep'),
        tmpfs('/data/mem'),
        named('a', '/data'),
        named('c', '/data/mem/x/c'),
        bind('sub', '/data/b'),
        named('d', '/data/mem/x/c/d'),
      ].toSorted((one, other) => one.guest.split('/').length - other.guest.split('/').length),
    )
    const write = ['/data', '/data/b', '/data/b/deep', '/data/mem', '/data/mem/x/c', '/data/mem/x/c/d']
    await inside(box, write.map((path) => `echo ${path} >${path}/self`).join(';'))
    const read = async (folder: string): Promise<string> => (await inside(box, `cat ${folder}/self`)).stdout.trim()
    for (const path of write) assert.equal(await read(path), path)
    const onHost = (folder: string): string => readFileSync(join(folder, 'self'), 'utf8').trim()
    assert.equal(onHost(fixture.volumeFolder('a')), '/data')
    assert.equal(onHost(join(fixture.volume, 'sub')), '/data/b')
    assert.equal(onHost(fixture.volumeFolder('b')), '/data/b/deep')
    assert.equal(onHost(fixture.volumeFolder('c')), '/data/mem/x/c')
    assert.equal(onHost(fixture.volumeFolder('d')), '/data/mem/x/c/d')
    assert.ok(!existsSync(join(fixture.volumeFolder('a'), 'mem/self')))
  })

  test('a target that is missing in a readonly mount is named in the error, and one that exists is mounted on', async () => {
    await refused(
      [named('a', '/ro', { readonly: true }), named('b', '/ro/sub')],
      /^the mount on '\/ro\/sub' could not be made: the path is missing in the readonly mount on '\/ro'$/,
    )
    mkdirSync(join(fixture.volumeFolder('a'), 'sub'))
    const box = await start([named('a', '/ro', { readonly: true }), named('b', '/ro/sub')])
    assert.equal((await inside(box, 'echo x >/ro/sub/x && cat /ro/sub/x')).stdout, 'x\n')
    assert.match((await inside(box, 'echo x >/ro/x')).stderr, /Read-only/)
  })

  test('a working folder that is missing in a volume is created there, but never in a readonly one', async () => {
    const runtime = { ...desiredRunWithMounts([]).spec.runtime, workdir: '/data/my/work' }
    const desired = desiredRunWithMounts([named('work', '/data')], { runtime })
    await driver.start(desired, NEVER)
    assert.equal((await inside(desired, 'stat -c %u:%a /data/my/work')).stdout, '0:755\n')
    const frozen = desiredRunWithMounts([named('empty', '/data', { readonly: true })], { runtime })
    await driver.start(frozen, NEVER)
    assert.equal((await inside(frozen, 'ls /data')).stdout, '')
  })

  test('a target behind a symlink of the image or of a volume resolves as the sandbox sees it', async () => {
    const linked = await start([named('a', '/var/run/here'), named('v', '/data')])
    await inside(linked, 'echo x >/run/here/file; ln -s /srv/far /data/link; ln -s ../../../../../../../srv /data/up')
    assert.equal(readFileSync(join(fixture.volumeFolder('a'), 'file'), 'utf8'), 'x\n')
    const far = await start([named('v', '/data'), named('b', '/data/link/deep'), named('c', '/data/up/near')])
    await inside(far, 'echo b >/srv/far/deep/file; echo c >/srv/near/file')
    assert.equal(readFileSync(join(fixture.volumeFolder('b'), 'file'), 'utf8'), 'b\n')
    assert.equal(readFileSync(join(fixture.volumeFolder('c'), 'file'), 'utf8'), 'c\n')
    assert.ok(!existsSync('/srv/far') && !existsSync('/srv/near'))
  })

  test('a mount that would hide another one, or is in a system folder, is refused', async () => {
    await refused([named('a', '/run/x'), named('b', '/var/run/x')], /hide the mount on '\/run\/x'/)
    for (const path of ['/proc', '/proc/sys', '/sys/fs', '/dev', '/dev/x', '/dev/shm', '/.msb', '/.msb/init'])
      await refused([named('a', path)], /the path is|that path is reserved for the system/)
    const box = await start([tmpfs('/dev/shm')])
    assert.match((await inside(box, 'df -k /dev/shm')).stdout, /\b1024\b/)
  })

  test('a volume that did not come with the run is named in the error', async () => {
    await refused(
      [named('gone', '/data')],
      /^the mount on '\/data' could not be made: the volume 'gone' does not exist$/,
      [],
    )
    await refused([bind('x', '/data')], /the organization's default volume does not exist/, [])
  })
})

async function start(mounts: readonly Mount[]): Promise<DesiredRun> {
  const desired = desiredRunWithMounts(mounts)
  await driver.start(desired, NEVER)
  return desired
}

async function refused(mounts: readonly Mount[], message: RegExp, volumes?: readonly RunVolume[]): Promise<void> {
  const desired = desiredRunWithMounts(mounts)
  const start = driver.start({ ...desired, volumes: volumes ?? desired.volumes }, NEVER)
  await assert.rejects(start, (error) => assertMountRefused(error, message))
}

async function inside(desired: DesiredRun, script: string): Promise<CommandResult> {
  return await fixture.exec(desired.run_id, ['sh', '-c', script])
}

function mountSourceOf(desired: DesiredRun, guest: string): string {
  const path = join(fixture.dir, 'state/runs', desired.run_id, 'config.json')
  const bundle: { mounts: { destination: string; source: string }[] } = JSON.parse(readFileSync(path, 'utf8'))
  return bundle.mounts.find(({ destination }) => destination === guest)?.source ?? ''
}

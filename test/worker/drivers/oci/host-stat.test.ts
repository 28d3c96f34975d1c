import assert from 'node:assert/strict'
import { chmodSync, chownSync, mkdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, afterEach, before, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { BindMount, Mount } from '../../../../src/domain/spec/spec.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { whyNoDiskImages } from '../../../support/disk-images.ts'
import { assertMountRefused, bind, desiredRunWithMounts, named } from '../../../support/mounts.ts'
import { makeOciFixture, type OciFixture } from '../../../support/oci-driver.ts'

const NEVER = new AbortController().signal

describe('stat_virtualization: off', { skip: whyNoDiskImages(['bindfs']) ?? false, timeout: 120_000 }, () => {
  let fixture: OciFixture
  let driver: Driver
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

  test('shows the files of a folder and of a named volume with the owners and modes that they have', async () => {
    const shift = fixture.settings.uidShift
    makeFile('work/root', 'hello\n', shift, 0o600)
    makeFile('work/alice', 'alice\n', shift + 1000, 0o640)
    const box = await start([off('work', '/work'), { ...named('v', '/v'), stat_virtualization: 'off' }])
    assert.equal(await inside(box, 'cat /work/root; stat -c "%n %u %a" /work/*'), 'hello\n/work/alice 1000 640\n/work/root 0 600\n') // prettier-ignore
    assert.equal(await inside(box, 'echo x >/v/file; cat /v/file'), 'x\n')
    assert.equal(readFileSync(join(fixture.volumeFolder('v'), 'file'), 'utf8'), 'x\n')
  })

  test('changes the files on disk: content, mode and what is new, whose owner made it', async () => {
    const shift = fixture.settings.uidShift
    makeFile('work/file', 'old', shift, 0o644)
    chmodSync(join(fixture.volume, 'work'), 0o777)
    const box = await start([off('work', '/work')])
    await inside(box, 'echo new >/work/file; chmod 750 /work/file; mkdir /work/d; ln -s file /work/soft; ln /work/file /work/link') // prettier-ignore
    await fixture.exec(box.run_id, ['setpriv', '--reuid', '1000', '--clear-groups', 'sh', '-c', 'echo a >/work/alice'])
    const at = (name: string): string => join(fixture.volume, 'work', name)
    assert.equal(readFileSync(at('soft'), 'utf8'), 'new\n')
    assert.deepEqual([statSync(at('file')).mode & 0o7777, statSync(at('file')).nlink], [0o750, 2])
    assert.equal(statSync(at('d')).uid, shift)
    assert.equal(statSync(at('alice')).uid, shift + 1000)
  })

  test('refuses changes of owners and special files, and respects permissions', async () => {
    const shift = fixture.settings.uidShift
    makeFile('fixed/file', 'x', shift, 0o600)
    const box = await start([off('fixed', '/work')])
    for (const command of [
      'chown 1000 /work/file',
      'chown :50 /work/file',
      'chown -h 1000:1000 /work/file',
      'mkfifo /work/fifo',
      'mknod /work/null c 1 3',
      'perl -e \'socket S, 1, 1, 0; bind S, pack("S Z*", 1, "/work/socket") or die $!\'',
    ])
      // prettier-ignore
      assert.match(await inside(box, command), /Operation not permitted|Permission denied/, command)
    assert.equal(statSync(join(fixture.volume, 'fixed/file')).uid, shift)
    assert.equal(await inside(box, 'ls /work'), 'file\n')
    const asAlice = await fixture.exec(box.run_id, [
      'setpriv',
      '--reuid',
      '1000',
      '--clear-groups',
      'cat',
      '/work/file',
    ])
    assert.match(asAlice.stderr, /Permission denied/)
  })

  test('a file that is deleted while it is open stays until it is closed, under another name', async () => {
    makeFile('open/file', 'x', fixture.settings.uidShift, 0o600)
    const box = await start([off('open', '/work')])
    const script =
      'open F, "<", "/work/file"; unlink "/work/file"; opendir D, "/work"; print <F>, join " ", readdir D; close F'
    assert.match((await fixture.exec(box.run_id, ['perl', '-e', script])).stdout, /^x.*\.fuse_hidden/)
    assert.equal(await inside(box, 'ls -A /work'), '')
  })

  test('keeps readonly and noexec, and leads nowhere out of the folder', async () => {
    const shift = fixture.settings.uidShift
    makeFile('work/run', '#!/bin/sh\necho ran\n', shift, 0o755)
    makeFile('secret', 'secret', shift, 0o644)
    for (const [name, target] of [['up', '../secret'], ['host', '/etc/shadow'], ['own', '/usr/bin']] as const)
      symlinkSync(target, join(fixture.volume, 'work', name)) // prettier-ignore
    const box = await start([{ ...off('work', '/work'), options: { ...bind('', '').options, readonly: true, noexec: true } }]) // prettier-ignore
    assert.match(await inside(box, 'echo x >/work/run'), /Read-only file system/)
    assert.match(await inside(box, '/work/run'), /Permission denied/)
    assert.match(await inside(box, 'cat /work/up /work/host'), /No such file.*\n.*No such file|Permission denied/)
    assert.match(await inside(box, 'ls /work/own/'), /perl/, 'a symlink leads within the sandbox')
  })

  test('is refused for a file, and for a mount inside', async () => {
    makeFile('work/file', 'x', fixture.settings.uidShift, 0o600)
    await assert.rejects(start([off('work/file', '/x')]), (error) => assertMountRefused(error, /folders only/))
    await assert.rejects(start([off('work', '/w'), bind('b', '/w/b')]), (error) => assertMountRefused(error, /inside the mount with/)) // prettier-ignore
  })

  function off(host: string, guest: string): BindMount {
    return { ...bind(host, guest), stat_virtualization: 'off' }
  }

  function makeFile(path: string, content: string, owner: number, mode: number): void {
    const at = join(fixture.volume, path)
    mkdirSync(join(at, '..'), { recursive: true })
    chownSync(join(at, '..'), fixture.settings.uidShift, fixture.settings.uidShift)
    writeFileSync(at, content)
    chownSync(at, owner, owner)
    chmodSync(at, mode)
  }

  async function start(mounts: readonly Mount[]): Promise<DesiredRun> {
    const desired = desiredRunWithMounts(mounts)
    await driver.start(desired, NEVER)
    return desired
  }

  async function inside(box: DesiredRun, script: string): Promise<string> {
    const { stdout, stderr } = await fixture.exec(box.run_id, ['sh', '-c', script])
    return stdout + stderr
  }
})

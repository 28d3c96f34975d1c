import assert from 'node:assert/strict'
import { chmodSync, lchownSync, lstatSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import { runCommand } from '../../src/lib/run-command.ts'
import { findMissingPrograms } from '../../src/worker/drivers/shared/machine.ts'
import type { Driver } from '../../src/worker/drivers/driver.ts'
import { makeDesiredRun } from '../support/desired-run.ts'
import { makeOciFixture, testRuntime, whyNoOci, type OciFixture } from '../support/oci-driver.ts'
import { PACKAGE_LIMIT_MS, whyNoPackages } from '../support/packages.ts'
import { waitUntil } from '../support/wait.ts'
import { find } from '../worker/drivers/conformance.ts'

// The init programs of Debian's packages as process 1 of containers: systemd, and the one of busybox.

const NEVER = new AbortController().signal
const LONG_MS = 60_000
const missing = findMissingPrograms(['mmdebstrap'])
const skip =
  whyNoPackages() ||
  (whyNoOci() ??
    (missing.length > 0 ? `missing programs: ${missing.join(', ')}` : null) ??
    (testRuntime() === 'runsc' ? 'gVisor has no cgroups for systemd' : false))
const HUNGRY = `[Service]
ExecStart=/usr/bin/perl -e '$$x = "x" x (1 << 30); sleep 1000'
`
const HELLO = `[Service]
ExecStart=/bin/sh -c 'echo hello from a unit; exec sleep 1000'
User=nobody
`

let fixture: OciFixture
let driver: Driver

describe('an init of Debian', { skip, timeout: PACKAGE_LIMIT_MS }, () => {
  before(async () => {
    fixture = await makeOciFixture()
    rmSync(fixture.layer, { recursive: true })
    const suite = /^VERSION_CODENAME=(\w+)$/m.exec(readFileSync('/etc/os-release', 'utf8'))?.[1] ?? 'stable'
    const packages = '--include=systemd,systemd-sysv,dbus,busybox-static'
    await runCommand('mmdebstrap', ['--variant=minbase', packages, suite, fixture.layer], {
      timeoutMs: PACKAGE_LIMIT_MS,
    })
    writeFileSync(join(fixture.layer, 'etc/systemd/system/hello.service'), HELLO)
    writeFileSync(join(fixture.layer, 'etc/systemd/system/hungry.service'), HUNGRY)
    writeFileSync(join(fixture.layer, 'etc/inittab'), '::sysinit:/bin/touch /booted\n::respawn:/bin/sleep 1000\n')
    shiftOwners(fixture.layer, fixture.settings.uidShift)
    driver = await fixture.open()
  })
  after(async () => {
    for (const run of await driver.list()) await driver.remove(run.run_id)
    await driver.close()
    assert.deepEqual(await fixture.leftovers(), [])
    await fixture.remove()
  })

  const start = async (cmd: string): Promise<DesiredRun> => {
    const resources = { memory_mib: 256, vcpus: 1, disk_size_mib: null }
    const desired = makeDesiredRun({ init: { cmd, args: [], env: [] }, resources })
    await driver.start(desired, NEVER)
    return desired
  }
  const inside = async ({ run_id }: DesiredRun, ...command: readonly string[]): Promise<string> => {
    const { stdout, stderr } = await fixture.exec(run_id, command)
    return stdout.trim() + stderr.trim()
  }
  const ended = async ({ run_id }: DesiredRun): Promise<unknown> => {
    await waitUntil(async () => (await find(driver, run_id))?.phase === 'ended', LONG_MS)
    return (await find(driver, run_id))?.outcome
  }
  const booted = (run: DesiredRun): Promise<unknown> =>
    waitUntil(async () => (await inside(run, 'systemctl', 'is-system-running')) === 'running', LONG_MS)

  test('systemd boots without a failed unit, systemctl manages units, and a stop powers it off', async () => {
    const run = await start('auto')
    await booted(run)
    assert.match(await inside(run, 'systemctl', '--failed', '--no-pager'), /^ *UNIT.*\n*0 loaded units/m)
    assert.equal(await inside(run, 'systemctl', 'start', 'hello'), '')
    assert.equal(await inside(run, 'systemctl', 'is-active', 'hello'), 'active')
    await waitUntil(async () => (await inside(run, 'journalctl', '-u', 'hello')).includes('hello from a unit'))
    assert.match(await inside(run, 'systemctl', 'status', '--no-pager', 'hello'), /CGroup: .*hello\.service/)
    assert.equal(await inside(run, 'systemctl', 'stop', 'hello'), '')
    assert.equal(await inside(run, 'systemctl', 'is-active', 'hello'), 'inactive')
    await driver.stop(run.run_id, LONG_MS)
    assert.deepEqual(await ended(run), { kind: 'stopped' })
  })

  test('systemd keeps the sandbox within its memory, and lives on after the worker', async () => {
    const run = await start('/lib/systemd/systemd')
    await booted(run)
    await inside(run, 'systemctl', 'start', 'hungry')
    await waitUntil(async () => (await inside(run, 'systemctl', 'is-failed', 'hungry')) === 'failed', LONG_MS)
    assert.match(await inside(run, 'systemctl', 'show', '-p', 'ExecMainStatus', 'hungry'), /=9$/)
    await driver.close()
    driver = await fixture.open()
    assert.equal((await find(driver, run.run_id))?.phase, 'running')
    await inside(run, 'systemctl', 'poweroff')
    assert.deepEqual(await ended(run), { kind: 'exited', code: 0 })
  })

  test('the init of busybox runs its table, and is killed after the grace', async () => {
    const desired = makeDesiredRun({ init: { cmd: '/usr/bin/busybox', args: ['init'], env: [] } })
    await driver.start(desired, NEVER)
    await waitUntil(async () => (await inside(desired, 'ls', '/booted')) === '/booted')
    await driver.stop(desired.run_id, 100)
    assert.deepEqual(await ended(desired), { kind: 'stopped' })
  })
})

/** Adds a number to the owners of a folder and all that it contains, as the image store does with layers. */
function shiftOwners(path: string, shift: number): void {
  const { uid, gid, mode } = lstatSync(path)
  lchownSync(path, uid + shift, gid + shift)
  if ((mode & 0o170000) !== 0o120000) chmodSync(path, mode & 0o7777) // a change of owner clears set-user-id bits
  if ((mode & 0o170000) !== 0o040000) return
  for (const name of readdirSync(path)) shiftOwners(join(path, name), shift)
}

import assert from 'node:assert/strict'
import { chmodSync, chownSync, existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test, type TestContext } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import { tryCommand } from '../../../../src/lib/run-command.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { mountBtrfs, named, desiredRunWithMounts } from '../../../support/mounts.ts'
import { makeOciFixture, testRuntime, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'

const NEVER = new AbortController().signal
const ENOSYS = '38'
/**
 * Requests for ioctl(2), from linux/btrfs.h. Each takes a folder's descriptor and a structure of 4096 bytes that ends
 * in a name.
 */
const SUBVOL_CREATE = 0x5000940e
const SUBVOL_CREATE_V2 = 0x50009418
const SNAP_CREATE_V2 = 0x50009417
const whyNot =
  whyNoOci() ?? (testRuntime() === 'runsc' ? 'system calls never get to the host’s kernel from gVisor' : false)
let fixture: OciFixture
let driver: Driver
let box: DesiredRun
let btrfs: ReturnType<typeof mountBtrfs> = null

describe('a volume on btrfs', { skip: whyNot, timeout: 60_000 }, () => {
  before(async () => {
    fixture = await makeOciFixture()
    driver = await fixture.open({ readyAhead: 0 })
    btrfs = mountBtrfs()
    if (btrfs !== null) {
      const folder = fixture.volumeFolder('v')
      mkdirSync(folder, { recursive: true })
      await tryCommand('mount', ['--bind', btrfs.folder, folder], { timeoutMs: 5000 })
      chmodSync(fixture.dir, 0o711)
      chownSync(folder, fixture.settings.uidShift, fixture.settings.uidShift)
    }
    box = desiredRunWithMounts([named('v', '/data')])
    await driver.start(box, NEVER)
  })
  after(async () => {
    await driver.remove(box.run_id)
    await driver.close()
    if (btrfs !== null) {
      await tryCommand('umount', [fixture.volumeFolder('v')], { timeoutMs: 5000 })
      btrfs.remove()
    }
    await fixture.remove()
  })

  test('refuses subvolumes and snapshots to sandboxes, because they would count against no cap', async (t) => {
    if (isMissing(t)) return
    for (const [request, at] of [
      [SUBVOL_CREATE, 8],
      [SUBVOL_CREATE_V2, 56],
      [SNAP_CREATE_V2, 56],
    ] as const) {
      assert.equal(
        await ioctlOn('/data', request, `pack("q", fileno(F)) . ("\\0" x ${String(at - 8)}) . "sub"`),
        ENOSYS,
      )
      // The kernel ignores the upper half of the register.
      assert.equal(await ioctlOn('/data', request + 2 ** 32, `("\\0" x ${String(at)}) . "sub"`), ENOSYS)
    }
    assert.ok(!existsSync(join(fixture.volumeFolder('v'), 'sub')))
  })

  test('would allow subvolumes to the sandbox’s user without the seccomp filter', async (t) => {
    if (isMissing(t)) return
    const shift = String(fixture.settings.uidShift)
    const folder = fixture.volumeFolder('v')
    const perl = ['perl', '-e', script(folder, SUBVOL_CREATE, '("\\0" x 8) . "sub"')]
    const args = ['--reuid', shift, '--regid', shift, '--clear-groups', ...perl]
    assert.equal((await tryCommand('setpriv', args, { timeoutMs: 5000 })).stdout, '0')
    assert.ok(existsSync(join(folder, 'sub')))
  })

  test('leaves all other ioctl requests on devices and files alone', async () => {
    const pipe = 'pipe(F, G); syswrite(G, "abc"); my $n = pack("i", 0); ioctl(F, 0x541B, $n); print unpack("i", $n)'
    assert.equal((await fixture.exec(box.run_id, ['perl', '-e', pipe])).stdout, '3', 'FIONREAD')
    const window =
      'open(F, "+<", "/dev/ptmx") or die $!; my $w = pack("S4", 0 x 4); $! = 0; ioctl(F, 0x5413, $w); print $!+0'
    assert.equal((await fixture.exec(box.run_id, ['perl', '-e', window])).stdout, '0', 'TIOCGWINSZ')
    // A request with another magic number, by one bit or all, passes the filter, and the file system answers ENOTTY.
    const ENOTTY = '25'
    for (const magic of [...[0, 1, 2, 3, 4, 5, 6, 7].map((bit) => 0x94 ^ (1 << bit)), 0x6b, 0x00, 0xff])
      assert.equal(await ioctlOn('/data', (magic << 8) | 0xee, '"\\0" x 4096'), ENOTTY, magic.toString(16))
    assert.equal(await ioctlOn('/data', 0x94ee, '"\\0" x 4096'), ENOSYS)
  })
})

function isMissing(t: TestContext): boolean {
  if (btrfs === null) t.skip('no btrfs can be made and mounted here')
  return btrfs === null
}

/** Sends a request about a folder with ioctl(2) in the sandbox. Resolves with the error number; `0` means success. */
async function ioctlOn(path: string, request: number, argument: string): Promise<string> {
  return (await fixture.exec(box.run_id, ['perl', '-e', script(path, request, argument)])).stdout
}

/** A Perl script that calls ioctl(2) through `syscall`, because Perl's own `ioctl` truncates the request to 32 bits. */
function script(path: string, request: number, argument: string): string {
  const call = process.arch === 'x64' ? 16 : 29
  return `open(F, "<", "${path}") or sysopen(F, "${path}", 0x10000) or die $!; my $a = ${argument}; $a .= "\\0" x (4096 - length $a); $! = 0; syscall(${String(call)}, fileno(F), ${String(request)}, $a); print $!+0`
}

import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test, type TestContext } from 'node:test'
import type { DesiredRun, DesiredVolume } from '../../../../src/contract/workers/worker-protocol.ts'
import { asId, type OrgId, type VolumeId } from '../../../../src/domain/ids.ts'
import type { Mount } from '../../../../src/domain/spec/spec.ts'
import { systemClock } from '../../../../src/lib/clock.ts'
import type { Log } from '../../../../src/lib/log.ts'
import type { CommandResult } from '../../../../src/lib/run-command.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { NO_DISK_RESERVE } from '../../../../src/worker/disk-reserve.ts'
import { openVolumeStorage } from '../../../../src/worker/volumes/open-volume-storage.ts'
import type { VolumeStorage } from '../../../../src/worker/volumes/volume-storage.ts'
import { makeExt4, whyNoDiskImages } from '../../../support/disk-images.ts'
import { bind, diskImage, named, desiredRunWithMounts } from '../../../support/mounts.ts'
import { folderHash } from '../../../support/folder-hash.ts'
import { makeOciFixture, testRuntime, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { runVolume } from '../../../support/desired-run.ts'

const NEVER = new AbortController().signal
const MIB = 1024 * 1024
const diskImages = { skip: whyNoDiskImages() ?? false }
const log: Log = { debug: ignore, info: ignore, warn: ignore, error: ignore, child: () => log }
/**
 * Perl that clones the file F to the file G, or parts of it, by each call that the kernel has: ioctl(2) with FICLONE,
 * FICLONERANGE and FIDEDUPERANGE, and copy_file_range(2).
 */
const CLONES = {
  whole: `$! = 0; ioctl G, 0x40049409, fileno F; print $!+0`,
  range: `$! = 0; ioctl G, 0x4020940d, my $a = pack "q4", fileno F, 0, 0, 0; print $!+0`,
  same: `sysread F, my $b, 4096; syswrite G, $b; $! = 0; ioctl F, 0xc0189436, my $a = pack "Q2SSLq2Qll", 0, 4096, 1, 0, 0, fileno G, 0, 0, 0, 0; print $!+0`,
  copied: `$! = 0; syscall ${process.arch === 'x64' ? '326' : '285'}, fileno F, 0, fileno G, 0, ${String(20 * MIB)}, 0; print $!+0`,
}
let dir: string
let storage: VolumeStorage
let fixture: OciFixture
let driver: Driver

describe('the oci driver with real volume storage', { skip: whyNoOci() ?? false, timeout: 120_000 }, () => {
  before(async () => {
    dir = mkdtempSync(join(tmpdir(), 'sandyard-stored-'))
    const { settings } = await makeFixture()
    const plan = { dir: join(dir, 'volumes'), key: folderHash(dir), sharedDir: null, volumePoolGib: 1 }
    storage = await openVolumeStorage(plan, {
      uidShift: settings.uidShift,
      reserve: NO_DISK_RESERVE,
      clock: systemClock,
      log,
    })
    driver = await fixture.open({ readyAhead: 0 })
  })
  after(async () => {
    for (const run of await driver.list()) await driver.remove(run.run_id)
    await driver.close()
    assert.deepEqual(await fixture.leftovers(), [])
    await storage.close()
    await fixture.remove()
    rmSync(dir, { recursive: true, force: true })
  })

  test('a disk image that is larger than its volume’s cap gives errors beyond the cap', diskImages, async (t) => {
    if (isUncapped(t)) return
    const volume = await storage.open(stored({ ...runVolume(null), capacity_bytes: 8 * MIB }))
    const image = await makeExt4({ ...fixture, volume }, 'd.img')
    const box = await start([diskImage('d.img', '/disk')], 8 * MIB)
    const written = await inside(box, `dd if=/dev/urandom of=/disk/large bs=64k count=192 conv=fsync`)
    assert.match(written.stderr, /error writing|fsync failed/) // fuse2fs turns the kernel’s error into another
    assert.ok(statSync(image).blocks * 512 <= 8 * MIB)
    assert.equal((await inside(box, 'echo works')).stdout, 'works\n')
    await driver.remove(box.run_id)
    rmSync(image)
  })

  test('a sandbox can’t write beyond the cap of a mounted volume, whether named or default volume', async (t) => {
    if (isUncapped(t)) return
    const box = await start([named('capped', '/data'), bind('folder', '/host')], 8 * MIB)
    for (const folder of ['/data', '/host']) {
      const { stderr } = await inside(box, `head -c ${String(20 * MIB)} /dev/zero >${folder}/large; sync`)
      assert.match(stderr, /quota exceeded/i, folder)
      assert.ok(Number((await inside(box, `stat -c %s ${folder}/large`)).stdout) <= 8 * MIB)
    }
  })

  test('a sandbox can’t clone files of one volume beyond the cap of another', async (t) => {
    if (isUncapped(t)) return
    const desired = desiredRunWithMounts([named('large', '/large'), named('small', '/small')])
    const volumes = desired.volumes.map((volume) => ({
      ...volume,
      capacity_bytes: volume.name === 'small' ? 8 * MIB : null,
    }))
    await driver.start({ ...desired, volumes }, NEVER)
    await inside(desired, `head -c ${String(20 * MIB)} /dev/urandom >/large/file; sync`)
    for (const [way, call] of Object.entries(CLONES)) {
      const script = `open F, "<", "/large/file"; open G, "+>", "/small/${way}"; ${call}`
      const { stdout } = await fixture.exec(desired.run_id, ['perl', '-e', script])
      if (testRuntime() !== 'runsc') assert.match(stdout, /^(38|95)$/, `${way}: not ENOSYS or EOPNOTSUPP`)
    }
    await inside(desired, 'sync')
    const small = stored(runVolume('small')).volume_id
    const used = (await storage.measure()).find(({ volume_id }) => volume_id === small)?.used_bytes ?? Infinity
    assert.ok(used <= 8 * MIB, `${String(used)} bytes`)
    await driver.remove(desired.run_id)
  })

  test('a volume can’t be removed while a sandbox mounts it, and is removed completely afterwards', async (t) => {
    if (isUncapped(t)) return
    const box = await start([named('busy', '/data')], null)
    await inside(box, 'echo x >/data/file')
    await assert.rejects(storage.remove(stored(runVolume('busy'))), /mounted/)
    assert.equal((await inside(box, 'cat /data/file')).stdout, 'x\n')
    await driver.remove(box.run_id)
    await storage.remove(stored(runVolume('busy')))
    const again = await start([named('busy', '/data')], null)
    assert.equal((await inside(again, 'ls /data')).stdout, '')
  })

  test('mount options are those of the spec, whatever options the volumes’ file system has', async (t) => {
    if (testRuntime() === 'runsc') {
      t.skip('set-user-id programs gain nothing in gVisor')
      return
    }
    const box = await start([named('own', '/plain'), named('own', '/strict', { nosuid: true, noexec: true })], null)
    await inside(box, 'cat /usr/bin/id >/plain/id; chmod 4755 /plain/id')
    assert.equal((await inside(box, 'setpriv --reuid 1000 --clear-groups /plain/id -u')).stdout, '0\n')
    assert.equal((await inside(box, '/strict/id')).code, 126)
  })
})

async function makeFixture(): Promise<OciFixture> {
  fixture = await makeOciFixture(undefined, { open: (volume) => storage.open(stored(volume)) })
  return fixture
}

/** A copy of a volume with valid UUIDs, which the storage requires. */
function stored(volume: DesiredVolume): DesiredVolume {
  const uuid = (text: string): string =>
    createHash('sha256')
      .update(text)
      .digest('hex')
      .replace(/^(.{8})(.{4})(.{4})(.{4})(.{12}).*$/, '$1-$2-$3-$4-$5')
  return { ...volume, org_id: asId<OrgId>(uuid(volume.org_id)), volume_id: asId<VolumeId>(uuid(volume.volume_id)) }
}

function isUncapped(t: TestContext): boolean {
  if (!storage.report.enforces_caps) t.skip(`volumes have no caps here: ${storage.report.how}`)
  return !storage.report.enforces_caps
}

async function start(mounts: readonly Mount[], capBytes: number | null): Promise<DesiredRun> {
  const desired = desiredRunWithMounts(mounts)
  const volumes = desired.volumes.map((volume) => ({ ...volume, capacity_bytes: capBytes }))
  await driver.start({ ...desired, volumes }, NEVER)
  return desired
}

async function inside(desired: DesiredRun, script: string): Promise<CommandResult> {
  return await fixture.exec(desired.run_id, ['sh', '-c', script])
}

function ignore(): void {
  // no test reads the log
}

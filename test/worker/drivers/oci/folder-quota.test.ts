import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { DesiredRun, DesiredVolume } from '../../../../src/contract/workers/worker-protocol.ts'
import type { BindMount, Mount } from '../../../../src/domain/spec/spec.ts'
import { systemClock } from '../../../../src/lib/clock.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import { NO_DISK_RESERVE } from '../../../../src/worker/disk-reserve.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { makeBtrfs, type Btrfs } from '../../../../src/worker/volumes/btrfs-commands.ts'
import { openVolumeStorage, whyNoVolumePool } from '../../../../src/worker/volumes/open-volume-storage.ts'
import type { VolumeStorage } from '../../../../src/worker/volumes/volume-storage.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { folderHash } from '../../../support/folder-hash.ts'
import { assertMountRefused, bind } from '../../../support/mounts.ts'
import { makeOciFixture, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { waitUntil } from '../../../support/wait.ts'
import { newVolume } from '../../../support/volume-storage.ts'

const NEVER = new AbortController().signal
const MIB = 1024 * 1024
const QUOTA_MIB = 8
const [SETXATTR, FALLOCATE, COPY_FILE_RANGE] = process.arch === 'x64' ? [188, 285, 326] : [5, 47, 285]
const FICLONE = 0x40049409
/** Scripts that try to get more into the folder /q than its quota. /free is a folder of the same volume without one. */
const ATTACKS: Readonly<Record<string, readonly [program: 'sh' | 'perl', script: string]>> = {
  'one large file': ['sh', 'head -c 20M /dev/urandom >/q/large'],
  'small files': ['perl', 'for my $n (1 .. 20000) { open F, ">", "/q/$n" or last; syswrite F, "x" x 1000 }'],
  'extended attributes': [
    'perl',
    `for my $n (1 .. 9000) { open F, ">", "/q/$n" or last; my ($v, $p, $k) = ("x" x 3000, "/q/$n", "user.a"); syscall ${String(SETXATTR)}, $p, $k, $v, 3000, 0 }`,
  ],
  'reserved space': [
    'perl',
    `open F, ">", "/q/reserved"; syscall ${String(FALLOCATE)}, fileno F, 0, 0, ${String(20 * MIB)}`,
  ],
  'holes in extents that stay allocated': [
    'perl',
    `for my $n (1 .. 9) { open F, ">", "/q/f$n" or last; syswrite F, "x" x 2097152; system "sync"; syscall ${String(FALLOCATE)}, fileno F, 3, 4096, 2093056 }`,
  ],
  'content that is deleted and made again': [
    'sh',
    'for n in 1 2 3 4; do rm -f /q/*; head -c 6M /dev/urandom >/q/$n; head -c 6M /dev/urandom >/q/more; done',
  ],
  'a file of the volume, moved, linked, cloned or copied in the kernel': [
    'perl',
    `rename "/free/large", "/q/moved"; link "/free/large", "/q/linked"; open F, "<", "/free/large"; open G, ">", "/q/cloned"; ioctl G, ${String(FICLONE)}, fileno F; open G, ">", "/q/copied"; syscall ${String(COPY_FILE_RANGE)}, fileno F, 0, fileno G, 0, ${String(20 * MIB)}, 0`,
  ],
}

/** Fills deleted files that stay open, until a file is deleted. */
const HOLD_DELETED_FILES =
  'my @open; for (1 .. 20) { open my $f, ">", "/q/f" or last; unlink "/q/f"; syswrite $f, "x" x 1048576; push @open, $f } system "sync"; open F, ">", "/free/held"; select undef, undef, undef, 0.05 while -e "/free/held"'

describe(
  'quota_mib of a bind mount',
  { skip: whyNoOci() ?? (await whyNoVolumePool()) ?? false, timeout: 120_000 },
  () => {
    let dir: string
    let storage: VolumeStorage
    let btrfs: Btrfs
    let fixture: OciFixture
    let driver: Driver
    before(async () => {
      dir = mkdtempSync(join(tmpdir(), 'sandyard-quota-'))
      fixture = await makeOciFixture(undefined, {
        open: (volume) => storage.open(volume),
        get folderLimits() {
          return storage.folderLimits
        },
      })
      const settings = { dir: join(dir, 'volumes'), key: folderHash(dir), sharedDir: null, volumePoolGib: 1 }
      const { uidShift } = fixture.settings
      storage = await openVolumeStorage(settings, { uidShift, reserve: NO_DISK_RESERVE, clock: systemClock, log: makeLog('silent') }) // prettier-ignore
      btrfs = makeBtrfs(storage.root)
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

    test('holds, whatever a sandbox does in the folder', async () => {
      const volume = newVolume()
      const box = await start(volume, [quota('folder', '/q'), bind('free', '/free')])
      await inside(box, 'head -c 20M /dev/urandom >/free/large; sync')
      for (const [attack, [program, script]] of Object.entries(ATTACKS)) {
        await fixture.exec(box.run_id, [program, program === 'sh' ? '-c' : '-e', script])
        await inside(box, 'sync')
        const used = await usedIn(volume, 'folder')
        assert.ok(used <= QUOTA_MIB * MIB, `${attack}: ${String(used)} bytes`)
        await inside(box, 'rm -rf /q/*')
      }
      const holding = fixture.exec(box.run_id, ['perl', '-e', HOLD_DELETED_FILES])
      await waitUntil(async () => (await inside(box, 'test -e /free/held && echo yes')) === 'yes\n')
      const used = await usedIn(volume, 'folder')
      assert.ok(used > (QUOTA_MIB - 2) * MIB && used <= QUOTA_MIB * MIB, `deleted while open: ${String(used)} bytes`)
      await inside(box, 'rm /free/held')
      await holding
      assert.match(await inside(box, 'head -c 6M /dev/zero >/q/file; sync; stat -c %s /q/file'), /^6291456$/m)
      await driver.remove(box.run_id)
    })

    test('counts for the cap of the volume, and for the volume’s usage', async () => {
      const volume = { ...newVolume(), capacity_bytes: 16 * MIB }
      const box = await start(volume, [quota('folder', '/q', 64), bind('', '/all')])
      await inside(box, 'head -c 6M /dev/urandom >/all/file; head -c 20M /dev/urandom >/q/file; sync')
      const measured = (await storage.measure()).find(({ volume_id }) => volume_id === volume.volume_id)
      assert.ok(Number(measured?.used_bytes) > 15 * MIB && Number(measured?.used_bytes) <= 16 * MIB)
      await storage.applyCaps({ ...volume, capacity_bytes: 20 * MIB })
      await inside(box, 'head -c 20M /dev/urandom >/all/more; sync')
      const later = (await storage.measure()).find(({ volume_id }) => volume_id === volume.volume_id)
      assert.ok(Number(later?.used_bytes) > 19 * MIB && Number(later?.used_bytes) <= 20 * MIB)
      await driver.remove(box.run_id)
    })

    test('is the smallest of all sandboxes that mount the folder, and that of the next one afterwards', async () => {
      const volume = newVolume()
      const boxes = [
        await start(volume, [quota('folder', '/q', 8)]),
        await start(volume, [quota('folder', '/q', 4)]),
        await start(volume, [quota('folder', '/q', 16)]),
        await start(volume, [bind('folder', '/q')]),
      ]
      for (const box of boxes) {
        await inside(box, `head -c 20M /dev/urandom >/q/${box.run_id}; sync`)
        assert.ok((await usedIn(volume, 'folder')) <= 4 * MIB)
      }
      for (const box of boxes) await driver.remove(box.run_id)
      const larger = await start(volume, [quota('folder', '/q', 16)])
      await inside(larger, 'rm /q/*; head -c 20M /dev/urandom >/q/file; sync')
      const used = await usedIn(volume, 'folder')
      assert.ok(used > 15 * MIB && used <= 16 * MIB)
      await driver.remove(larger.run_id)
      const without = await start(volume, [bind('folder', '/q')])
      assert.match(await inside(without, 'head -c 20M /dev/urandom >/q/file; sync; stat -c %s /q/file'), /^20971520$/m)
      await driver.remove(without.run_id)
    })

    test('a sandbox with the folder above can delete the folder, and the next start makes it again', async () => {
      const volume = newVolume()
      const limited = await start(volume, [quota('a/b', '/q')])
      assert.equal(await inside(limited, 'echo x >/q/file; stat -c "%u %a" /q'), '0 755\n')
      const above = await start(volume, [bind('a', '/a')])
      assert.equal(await inside(above, 'cat /a/b/file; rm -r /a/b; ls /a'), 'x\n')
      assert.match(await inside(limited, 'echo y >/q/file'), /No such file|cannot create/i)
      for (const box of [limited, above]) await driver.remove(box.run_id)
      const again = await start(volume, [quota('a/b', '/q')])
      assert.equal(await inside(again, 'ls /q'), '')
      await inside(again, 'head -c 20M /dev/urandom >/q/file; sync')
      assert.ok((await usedIn(volume, 'a/b')) <= QUOTA_MIB * MIB)
      await driver.remove(again.run_id)
    })

    test('a folder with files of the client gets a quota, also beside a mount of the folder above', async () => {
      const volume = newVolume()
      const before = await start(volume, [bind('', '/all')])
      await inside(before, 'mkdir /all/work; head -c 6M /dev/urandom >/all/work/file')
      await driver.remove(before.run_id)
      const box = await start(volume, [bind('', '/all'), quota('work', '/q')])
      assert.match(await inside(box, 'head -c 6M /dev/urandom >/q/more; sync; stat -c %s /q/file'), /^6291456$/m)
      const used = await usedIn(volume, 'work')
      assert.ok(used > 7 * MIB && used <= QUOTA_MIB * MIB, String(used))
      assert.match(await inside(box, 'stat -c %s /all/work/file'), /^6291456$/m)
      await driver.remove(box.run_id)
    })

    test('is refused where it can’t hold: the whole volume, a file, folders in each other', async () => {
      const volume = newVolume()
      const box = await start(volume, [quota('outer', '/q'), bind('plain', '/plain'), bind('', '/all')])
      await inside(box, 'echo x >/all/file; mkdir /q/inner /all/moved')
      const refusals = [
        ['', /within the volume/],
        ['file', /is a file/],
        ['outer/inner', /in a folder with a quota/],
        ['plain', /only while no sandbox has mounted it/],
      ] as const
      for (const [host, message] of refusals)
        await assert.rejects(start(volume, [quota(host, '/x')]), (error) => assertMountRefused(error, message))
      const second = await start(volume, [quota('second', '/q')])
      await driver.remove(second.run_id)
      await fixture.exec(box.run_id, ['perl', '-e', 'rename "/all/second", "/all/outer/second" or die $!'])
      for (const host of ['outer', 'outer/second'])
        await assert.rejects(start(volume, [quota(host, '/x')]), (error) => assertMountRefused(error, /contains one/))
      await driver.remove(box.run_id)
    })

    function quota(host: string, guest: string, quota_mib = QUOTA_MIB): BindMount {
      return { ...bind(host, guest), quota_mib }
    }

    async function start(volume: DesiredVolume, mounts: readonly Mount[]): Promise<DesiredRun> {
      const desired = { ...makeDesiredRun({ mounts }), org_id: volume.org_id }
      const run = { ...desired, volumes: [{ ...volume, kind: 'host' as const, name: null }] }
      await driver.start(run, NEVER)
      return run
    }

    async function inside(box: DesiredRun, script: string): Promise<string> {
      const { stdout, stderr } = await fixture.exec(box.run_id, ['sh', '-c', script])
      return stdout + stderr
    }

    /** What a folder of a volume has by the kernel's count. */
    async function usedIn(volume: DesiredVolume, path: string): Promise<number> {
      const id = await btrfs.subvolumeIdOf(join(storage.root, volume.org_id, volume.volume_id, path))
      return (await btrfs.groups({ isSynced: true })).get(`0/${String(id)}`)?.usedBytes ?? Infinity
    }
  },
)

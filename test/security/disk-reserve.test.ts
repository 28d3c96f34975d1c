import assert from 'node:assert/strict'
import { statfsSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { VolumeFileError } from '../../src/contract/volumes/volume-protocol.ts'
import type { DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { makeDiskReserve } from '../../src/worker/disk-reserve.ts'
import { StartError } from '../../src/worker/start-error.ts'
import { makeVolumeFiles } from '../../src/worker/volumes/volume-files.ts'
import { makeDesiredRun } from '../support/desired-run.ts'
import { openAttackedDriver } from '../support/attacked-driver.ts'
import { whyNoOci } from '../support/oci-driver.ts'
import { attack } from '../support/security-attack.ts'
import { mountSmallDisk, whyNoSmallDisk } from '../support/small-disk.ts'
import { waitUntil } from '../support/wait.ts'

const MIB = 1024 * 1024
const RESERVE_MIB = 40
/** What the metadata of the disks' file systems may take of the reserve. */
const METADATA_MIB = 10

const freeMib = (folder: string): number => {
  const { bavail, bsize } = statfsSync(folder)
  return Math.floor((bavail * bsize) / MIB)
}

attack(
  'takes the disk space that PostgreSQL needs, by files of a volume',
  { target: 'volumes', attacker: "a tenant's key", finding: 3, skip: whyNoSmallDisk() || null },
  async (t) => {
    const disk = mountSmallDisk(128)
    t.after(() => {
      disk.remove()
    })
    const root = join(disk.folder, 'volume')
    await mkdir(root)
    const reserve = makeDiskReserve(disk.folder, RESERVE_MIB)
    const files = makeVolumeFiles({ root, uidShift: 100_000, random: systemRandom, reserve })
    const endless = Readable.from(chunks(512))
    await assert.rejects(files.write('/endless', endless), refusal)
    const leftMib = freeMib(disk.folder)
    assert.ok(leftMib > RESERVE_MIB, `a refused file left only ${String(leftMib)} MiB`)
    let tries = 1
    for (let index = 0; index < 40; index++) {
      tries += 1
      try {
        await files.write(`/${String(index)}`, Readable.from(chunks(4)))
      } catch (error) {
        assert.ok(refusal(error))
      }
      await files.copy(`/0`, `/copy-${String(index)}`).catch((error: unknown) => assert.ok(refusal(error)))
    }
    assert.ok(freeMib(disk.folder) > RESERVE_MIB - 10, `only ${String(freeMib(disk.folder))} MiB are free`)
    await files.remove('/0', { isRecursive: false })
    return { tries, outcome: `writes were refused; ${String(freeMib(disk.folder))} MiB stayed free` }
  },
)

attack(
  'takes the disk space that PostgreSQL needs, by disks of new sandboxes',
  { target: 'volumes', attacker: "a tenant's key", finding: 3, skip: whyNoSmallDisk() || whyNoOci() },
  async (t) => {
    const disk = mountSmallDisk(128)
    t.after(() => {
      disk.remove()
    })
    const diskReserve = makeDiskReserve(disk.folder, RESERVE_MIB)
    await using attacked = await openAttackedDriver({ diskReserve })
    const existing = await attacked.start()
    const offeredMib = (await attacked.driver.probe()).capacity.disk_mib
    disk.fill()
    await assert.rejects(attacked.start(), (error: unknown) => {
      assert.ok(error instanceof StartError && error.reason === 'disk')
      assert.match(error.message, /reserve of the control plane \(40 MiB, SANDYARD_DISK_RESERVE_MIB\)/)
      return true
    })
    assert.equal((await attacked.driver.probe()).capacity.disk_mib, 0)
    assert.equal((await attacked.inside(existing, 'echo still here')).stdout, 'still here\n')
    disk.free()
    await attacked.start()
    return {
      tries: 1,
      outcome: `the start was refused; the worker offered 0 MiB of disk in place of ${String(offeredMib)}`,
    }
  },
)

attack(
  'has a worker promise more disk than the operator allows, by many sandboxes that are stopped',
  { target: 'volumes', attacker: "a tenant's key", finding: 3, skip: whyNoSmallDisk() || whyNoOci() },
  async (t) => {
    const disk = mountSmallDisk(512)
    t.after(() => {
      disk.remove()
    })
    const settings = { diskReserve: makeDiskReserve(disk.folder, RESERVE_MIB), diskOvercommit: 1, readyAhead: 0 }
    await using attacked = await openAttackedDriver(settings)
    const { driver } = attacked
    const resources = { memory_mib: 64, vcpus: 1, disk_size_mib: 128 }
    const stopped = []
    let tries = 0
    let refused: unknown = null
    while (refused === null && tries < 8) {
      tries += 1
      try {
        const run = await attacked.start({ resources })
        await driver.remove(run.run_id)
        stopped.push(run)
      } catch (error) {
        refused = error
      }
    }
    assert.ok(refused instanceof StartError && refused.reason === 'disk', String(refused))
    assert.match(refused.message, /a disk of 128 MiB is more than this worker has left.*SANDYARD_DISK_OVERCOMMIT/)
    assert.equal(stopped.length, 3)
    const offeredMib = (await driver.probe()).capacity.disk_mib ?? 0
    assert.ok(offeredMib >= 3 * 128 && offeredMib < 4 * 128, `${String(offeredMib)} MiB are offered`)
    const [first, second] = stopped
    assert.ok(first !== undefined && second !== undefined)
    await driver.start({ ...second, run_id: makeDesiredRun().run_id }, new AbortController().signal)
    // The control plane gives the capacity of a deleted disk away before the worker has deleted the disk.
    const starting = attacked.start({ resources })
    await driver.discard(first.sandbox_id)
    await starting
    return {
      tries,
      outcome: `the disk beyond the limit was refused; ${String(stopped.length)} of 128 MiB fit into 430 MiB`,
    }
  },
)

attack(
  'takes the disk space that PostgreSQL needs, by writing to its own disk',
  { target: 'volumes', attacker: 'a sandbox', finding: 3, skip: whyNoSmallDisk() || whyNoOci() },
  async (t) => {
    const disk = mountSmallDisk(768)
    t.after(() => {
      disk.remove()
    })
    const diskReserve = makeDiskReserve(disk.folder, RESERVE_MIB)
    await using attacked = await openAttackedDriver({ diskReserve, defaultDiskMib: 512, readyAhead: 0 }, disk.folder)
    const runs = [await attacked.start(), await attacked.start(), await attacked.start()] as const
    const write = async (run: DesiredRun): Promise<void> => {
      const { stdout } = await attacked.inside(run, 'dd if=/dev/zero of=/root/fill bs=1M 2>&1; echo $?')
      assert.match(stdout, /No space left on device[^]*\n1\n$/, 'the sandbox sees that its disk is full')
    }
    await Promise.all(runs.map(write))
    for (const run of runs) {
      const synced = await attacked.inside(run, 'dd if=/dev/null of=/root/fill conv=notrunc,fsync 2>&1')
      assert.equal(synced.code, 0, `nothing that was written is lost: ${synced.stdout}`)
    }
    const leftMib = freeMib(disk.folder)
    assert.ok(leftMib >= RESERVE_MIB - METADATA_MIB, `only ${String(leftMib)} MiB are free`)
    const [first, second] = runs
    await attacked.driver.remove(first.run_id)
    await attacked.driver.discard(first.sandbox_id)
    const more = 'dd if=/dev/zero of=/root/more bs=1M count=8 2>/dev/null'
    await waitUntil(async () => (await attacked.inside(second, more)).code === 0) // the next measurement lets it
    return { tries: runs.length, outcome: `writes failed with ENOSPC; ${String(leftMib)} MiB stayed free` }
  },
)

function* chunks(count: number): Generator<Buffer> {
  for (let index = 0; index < count; index++) yield Buffer.alloc(MIB, index)
}

function refusal(error: unknown): boolean {
  assert.ok(error instanceof VolumeFileError, String(error))
  assert.equal(error.code, 'quota_exceeded')
  assert.match(error.message, /SANDYARD_DISK_RESERVE_MIB/)
  return true
}

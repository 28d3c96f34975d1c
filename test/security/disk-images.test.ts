import assert from 'node:assert/strict'
import { readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { DiskImageFormat } from '../../src/domain/spec/spec.ts'
import { runCommand } from '../../src/lib/run-command.ts'
import { StartError } from '../../src/worker/start-error.ts'
import { openAttackedDriver } from '../support/attacked-driver.ts'
import { makeExt4, ownBySandboxes, whyNoDiskImages } from '../support/disk-images.ts'
import { diskImage } from '../support/mounts.ts'
import { attack } from '../support/security-attack.ts'

const skip = whyNoDiskImages(['qemu-img', 'qemu-storage-daemon', 'debugfs'])
const SECRET = '/etc/shadow'
const MUTATIONS = 12
/** The bytes of an ext4 image of 16 MiB that describe it: superblock, groups, bitmaps, the first inodes, the root folder. */
const DESCRIPTION_BYTES = 256 * 1024

attack(
  'reads a file of the machine through a disk image that names it',
  { target: 'host', attacker: 'a tenant who makes the image', finding: null, skip },
  async () => {
    await using attacked = await openAttackedDriver()
    const { volume } = attacked.fixture
    const image = (name: string): string => join(volume, name)
    const create = (name: string, ...options: readonly string[]): Promise<unknown> =>
      runCommand('qemu-img', ['create', '-q', '-u', ...options, image(name), '16M'], { timeoutMs: 20_000 })
    await create('raw.qcow2', '-f', 'qcow2', '-b', SECRET, '-F', 'raw')
    await create('json.qcow2', '-f', 'qcow2', '-b', `json:{"driver":"raw","file":{"driver":"file","filename":"${SECRET}"}}`, '-F', 'raw') // prettier-ignore
    await create('network.qcow2', '-f', 'qcow2', '-b', 'nbd://127.0.0.1:1/x', '-F', 'raw')
    writeFileSync(image('flat.vmdk'), `# Disk DescriptorFile\ncreateType="monolithicFlat"\nRW 8 FLAT "${SECRET}" 0\n`)
    writeFileSync(image('device.vmdk'), '# Disk DescriptorFile\ncreateType="fullDevice"\nRW 8 FLAT "/dev/vda" 0\n')
    for (const name of ['raw.qcow2', 'json.qcow2', 'network.qcow2', 'flat.vmdk', 'device.vmdk'])
      ownBySandboxes(attacked.fixture, name)
    symlinkSync(SECRET, image('link.raw'))
    symlinkSync('../../../../../../../dev/vda', image('device.raw'))
    const names = ['raw.qcow2', 'json.qcow2', 'network.qcow2', 'flat.vmdk', 'device.vmdk', 'link.raw', 'device.raw', `../..${SECRET}`] // prettier-ignore
    for (const name of names) {
      const format: DiskImageFormat = name.endsWith('.qcow2') ? 'qcow2' : name.endsWith('.vmdk') ? 'vmdk' : 'raw'
      const mounts = [diskImage(name, '/disk', { format, readonly: true })]
      await assert.rejects(attacked.start({ mounts }), (error) => {
        assert.ok(error instanceof StartError && error.reason === 'mount', String(error))
        assert.ok(!error.message.includes('root:'), error.message)
        return true
      })
    }
    return { tries: names.length, outcome: `each of ${String(names.length)} starts failed and named the image` }
  },
)

attack(
  'harms the worker or the machine by an image whose file system is malformed',
  { target: 'host', attacker: 'a tenant who makes the image', finding: null, skip },
  async () => {
    await using attacked = await openAttackedDriver()
    const original = readFileSync(await makeExt4(attacked.fixture, 'd.img', { greeting: 'hello\n' }))
    const neighbour = await attacked.start()
    let refused = 0
    for (let seed = 1; seed <= MUTATIONS; seed++) {
      writeFileSync(join(attacked.fixture.volume, 'd.img'), mutate(original, seed))
      const mounts = [diskImage('d.img', '/disk', { readonly: seed % 2 === 0 })]
      const run = await attacked.start({ mounts }).catch((error: unknown) => {
        assert.ok(error instanceof StartError && error.reason === 'mount', `seed ${String(seed)}: ${String(error)}`)
        return null
      })
      if (run === null) refused++
      else {
        const walk = 'timeout 10 ls -R /disk; timeout 10 cat /disk/greeting; timeout 10 sh -c "echo x >/disk/new"; true'
        await attacked.inside(run, walk)
        assert.equal((await attacked.inside(run, 'echo works')).stdout, 'works\n')
        await attacked.driver.remove(run.run_id)
      }
    }
    assert.equal((await attacked.inside(neighbour, 'echo works')).stdout, 'works\n')
    const outcome = `${String(refused)} images were refused, ${String(MUTATIONS - refused)} were mounted; a neighbour ran on, and nothing was left`
    return { tries: MUTATIONS, outcome }
  },
)

/** Changes 40 bytes that describe the file system, by a generator with this seed. */
function mutate(original: Buffer, seed: number): Buffer {
  const copy = Buffer.from(original)
  let state = seed
  const next = (below: number): number => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0
    return (state >>> 8) % below
  }
  for (let count = 0; count < 40; count++) copy[1024 + next(DESCRIPTION_BYTES)] = next(256)
  return copy
}

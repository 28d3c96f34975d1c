import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { pidsOf, pidsOfAllSandboxes } from '../../../../src/worker/drivers/oci/cgroups/sandbox-limits.ts'
import { limitsLacking } from '../../../../src/worker/drivers/oci/run/limits/limit-runs.ts'
import { deviceName } from '../../../../src/worker/processes/mountinfo.ts'
import { memoryForSandboxes } from '../../../../src/worker/drivers/shared/machine.ts'

const GIB = 1024 * 1024 * 1024

test('all sandboxes together leave the host a quarter of the process ids', () => {
  assert.equal(pidsOfAllSandboxes({ pidMax: 32_768, threadsMax: 192_731 }), 24_576)
  assert.equal(pidsOfAllSandboxes({ pidMax: 4_194_304, threadsMax: 100_000 }), 75_000)
})

test('a sandbox may have a base of processes and more for each GiB, if the kernel has enough for all', () => {
  const policy = { most: 32_768, perGib: 1024, parent: { memoryBytes: 16 * GIB, pids: 3_000_000 } }
  assert.deepEqual(
    [256, 512, 1024, 8192].map((memoryMib) => pidsOf(memoryMib, policy)),
    [768, 1024, 1536, 8704],
  )
})

test('sandboxes that fill the memory of the machine never have more processes together than all may have', () => {
  const sizes = fc.array(fc.integer({ min: 128, max: 4096 }), { maxLength: 60 })
  fc.assert(
    fc.property(sizes, fc.integer({ min: 20_000, max: 4_000_000 }), (wanted, pids) => {
      const parent = { memoryBytes: 16 * GIB, pids }
      let freeMib = 16 * 1024
      const placed = wanted.filter((memoryMib) => {
        if (memoryMib > freeMib) return false
        freeMib -= memoryMib
        return true
      })
      const policy = { most: 32_768, perGib: 1024, parent }
      assert.ok(placed.reduce((sum, memoryMib) => sum + pidsOf(memoryMib, policy), 0) <= pids)
    }),
  )
})

test('a machine on which sandboxes could use up the open files of all users says so', () => {
  const lacking = (fileMax: number): readonly string[] =>
    limitsLacking({ lacks: ['disk weights'] }, { memoryBytes: 24 * GIB }, fileMax)
  const files = 'room for all open files (fs.file-max is 2466183, and sandboxes could have 134217728)'
  assert.deepEqual(lacking(2_466_183), ['disk weights', files])
  assert.deepEqual(lacking(Number.MAX_SAFE_INTEGER), ['disk weights'])
})

test('the host keeps 5 % of the memory and at least 512 MiB, but at most half, unless the setting names its reserve', () => {
  assert.equal(memoryForSandboxes(null, 24_000), 22_800)
  assert.equal(memoryForSandboxes(null, 2048), 1536)
  assert.equal(memoryForSandboxes(null, 600), 300)
  assert.equal(memoryForSandboxes(100, 2048), 1948)
  assert.throws(
    () => memoryForSandboxes(2048, 2048),
    /SANDYARD_HOST_RESERVE_MIB is 2048; accepted: less than .* 2048 MiB/,
  )
})

test('a device number is written as the kernel writes it', () => {
  assert.equal(deviceName(7 * 256 + 255), '7:255')
  assert.equal(deviceName(7 * 256 + 0x10_0000 + 3), '7:259')
})

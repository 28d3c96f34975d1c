import assert from 'node:assert/strict'
import { test } from 'node:test'
import { describeCapacity } from '../../src/cli/worker/describe-capacity.ts'

const machine = { cores: 2, totalMib: 24_000, reservedMib: 1_200 }
const offered = { vcpus: 16, memory_mib: 21_375, disk_mib: null }

test('what a machine offers is told with what it is made of, and how many usual sandboxes fit', () => {
  assert.equal(
    describeCapacity(offered, { machine, defaultDiskMib: 8_192 }),
    '16 vCPUs (8 for each of 2 cores), 21375 MiB of memory (of 24000 MiB; 1200 MiB are reserved for the machine): ' +
      'about 16 sandboxes of 1 vCPU and 512 MiB',
  )
})

test('the scarcest resource decides how many sandboxes fit', () => {
  const fit = (change: object): string =>
    describeCapacity({ ...offered, ...change }, { machine, defaultDiskMib: 8_192 })
  assert.match(fit({ memory_mib: 5 * 512 + 511 }), /: about 5 sandboxes/)
  assert.match(fit({ disk_mib: 3 * 8_192 }), /24576 MiB of disks: about 3 sandboxes/)
  assert.match(fit({ memory_mib: 512 }), /: about 1 sandbox of/)
})

test('a machine whose disk is full says that no sandbox can start', () => {
  assert.match(
    describeCapacity({ ...offered, disk_mib: 0 }, { machine, defaultDiskMib: 8_192 }),
    /0 MiB of disks: no sandboxes of 1 vCPU/,
  )
})

import assert from 'node:assert/strict'
import { statfsSync } from 'node:fs'
import { Problem, PROBLEMS } from '../../src/domain/problem.ts'
import { StartError } from '../../src/worker/start-error.ts'
import { openAttackedDriver } from '../support/attacked-driver.ts'
import { makeTestControl } from '../support/control.ts'
import { whyNoOci } from '../support/oci-driver.ts'
import { createTestSandbox } from '../support/quota-world.ts'
import { attack } from '../support/security-attack.ts'

const MAX_MIB = 65_536
/** Sizes that an attacker asks for, the largest that the field's type allows included. */
const SIZES_MIB = [MAX_MIB + 1, 16 * 1024 * 1024, 2 ** 31 - 1]
const ASKS_FOR_TOO_MUCH = { target: 'volumes', finding: 3 } as const

attack(
  'asks the API for a disk that is larger than the machine',
  { ...ASKS_FOR_TOO_MUCH, attacker: "a tenant's key" },
  async (t) => {
    const control = await makeTestControl()
    t.after(() => control.close())
    for (const disk_size_mib of SIZES_MIB) {
      await assert.rejects(createTestSandbox(control.deps, control.caller, { disk_size_mib }), (error: unknown) => {
        assert.ok(error instanceof Problem)
        assert.equal(PROBLEMS[error.code].status, 400)
        const { field, seen, accepted } = error.details as Record<string, string>
        assert.deepEqual([field, seen], ['resources.disk_size_mib', String(disk_size_mib)])
        assert.match(accepted ?? '', /at most 65536.*SANDYARD_DISK_MAX_MIB/)
        return true
      })
    }
    return { tries: SIZES_MIB.length, outcome: `every size above ${String(MAX_MIB)} MiB was answered 400` }
  },
)

attack(
  'has a worker make a disk that is larger than the operator allows',
  { ...ASKS_FOR_TOO_MUCH, attacker: 'a control plane with another limit', skip: whyNoOci() },
  async () => {
    await using attacked = await openAttackedDriver()
    const { bfree } = statfsSync(attacked.fixture.dir)
    for (const disk_size_mib of SIZES_MIB) {
      const resources = { memory_mib: 64, vcpus: 1, disk_size_mib }
      await assert.rejects(attacked.start({ resources }), (error: unknown) => {
        assert.ok(error instanceof StartError)
        assert.match(error.message, /at most 65536 MiB \(SANDYARD_DISK_MAX_MIB\)/)
        return true
      })
    }
    assert.deepEqual(await attacked.driver.listStored(), [])
    assert.ok(statfsSync(attacked.fixture.dir).bfree > bfree / 2)
    return { tries: SIZES_MIB.length, outcome: 'the worker refused each start, and made no disk' }
  },
)

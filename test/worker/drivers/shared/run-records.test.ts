import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import { newRunRecord, openRunRecords, type RunRecord } from '../../../../src/worker/drivers/shared/run-records.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'

let dir: string
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'sandyard-records-'))
})
afterEach(() => {
  rmSync(dir, { recursive: true, force: true })
})

const open = () => openRunRecords<RunRecord<unknown>>(dir, 'ends')
const recordOf = (desired: DesiredRun): RunRecord<unknown> => newRunRecord(desired, 'boot')

test('a later process finds the records of an earlier one, by run and by sandbox, as they were written last', async () => {
  const [first, other] = [makeDesiredRun(), makeDesiredRun()]
  const second = makeDesiredRun({}, first.sandbox_id)
  const earlier = await open()
  for (const desired of [first, second, other]) earlier.write(recordOf(desired))
  earlier.write({ ...recordOf(first), is_released: true })

  for (const records of [earlier, await open()]) {
    assert.deepEqual(records.read(first.run_id), { ...recordOf(first), is_released: true })
    assert.equal(records.list().length, 3)
    const ofSandbox = records.listOf(first.sandbox_id).map(({ run_id }) => run_id)
    assert.deepEqual(ofSandbox.toSorted(), [first.run_id, second.run_id].toSorted())
  }
})

test('a deleted run is found nowhere', async () => {
  const desired = makeDesiredRun()
  const records = await open()
  records.write(recordOf(desired))
  await records.delete(desired.run_id)
  for (const some of [records, await open()])
    assert.deepEqual(
      [some.read(desired.run_id), some.list(), some.listOf(desired.sandbox_id), await some.names()],
      [null, [], [], []],
    )
})

test('a truncated record is no record, but its run has a name', async () => {
  const desired = makeDesiredRun()
  const earlier = await open()
  earlier.write(recordOf(desired))
  writeFileSync(join(earlier.folderOf(desired.run_id), 'state.json'), '{"version":1,"run')
  const records = await open()
  assert.deepEqual([records.read(desired.run_id), records.list()], [null, []])
  assert.deepEqual(await records.names(), [desired.run_id])
})

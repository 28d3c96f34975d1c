import assert from 'node:assert/strict'
import { test } from 'node:test'
import { deleteSnapshot } from '../../../src/control/snapshots/delete-snapshot.ts'
import { getStorageBreakdown, getUsage } from '../../../src/control/usage/read-usage.ts'
import { registerWorker } from '../../../src/control/workers/worker-join.ts'
import { asId, type SandboxId, type SnapshotId, type SnapshotOperationId } from '../../../src/domain/ids.ts'
import { DAY_MS, HOUR_MS } from '../../../src/domain/usage/metering.ts'
import { makeRollUpUsageLoop } from '../../../src/loops/roll-up-usage.ts'
import * as snapshots from '../../../src/store/snapshots/snapshots.ts'
import * as snapshotWork from '../../../src/store/snapshots/snapshot-work.ts'
import { makeTestControl } from '../../support/control.ts'
import { makeTestClock } from '../../support/test-clock.ts'

const never = new AbortController().signal
const MIB = 1_048_576

test('a snapshot is metered as storage from its completion until it is deleted, on each day once', async (t) => {
  const clock = makeTestClock(new Date('2026-11-23T12:00:00Z'))
  const control = await makeTestControl({ clock })
  t.after(() => control.close())
  const { deps, caller } = control
  const worker_id = await registerWorker(deps, { name: 'home', credential: 'credential-of-home' })
  const rollUp = makeRollUpUsageLoop(deps)

  /** A complete snapshot of 10 MiB. */
  async function made(name: string | null, replaces = false): Promise<SnapshotId> {
    const { org_id } = caller
    const id = asId<SnapshotId>(deps.uuids.next())
    const operation_id = asId<SnapshotOperationId>(deps.uuids.next())
    const sandbox_id = asId<SandboxId>(deps.uuids.next())
    const of = { sandbox_id, sandbox_name: 'source', worker_id, image: 'alpine', labels: {} }
    const how = { replaces, records_integrity: false, is_scheduled: false, created_at: clock.now() }
    const result = {
      disk_bytes: MIB,
      size_bytes: 10 * MIB,
      digest: 'sha256:0',
      manifest: '{}',
      completed_at: clock.now(),
    }
    await deps.db.transaction('system', async (tx) => {
      await snapshots.insert(tx, { id, operation_id, org_id, name, ...of, ...how })
      await snapshotWork.complete(tx, id, result)
    })
    return id
  }
  /** MiB times hours by the name of the holder and the day. */
  async function usage(): Promise<Readonly<Record<string, number>>> {
    const range = {
      since: new Date('2026-11-23T00:00:00Z'),
      until: new Date('2026-11-28T00:00:00Z'),
    }
    const { rows, volumes } = await getStorageBreakdown(deps, caller, range)
    const { line_items } = await getUsage(deps, caller, range)
    const hours = rows.map(({ mib_seconds }) => mib_seconds / 3_600)
    const billed = line_items.find(({ name }) => name === 'Storage')?.quantity ?? 0
    assert.ok(Math.abs(billed - hours.reduce((sum, one) => sum + one, 0) / 1_024) < 1e-6, 'the sum is what is billed')
    const nameOf = (id: string): string => volumes.find((one) => one.id === id)?.name ?? 'deleted'
    return Object.fromEntries(
      rows.map((row, at) => [`${nameOf(row.volume_id)} ${row.day.slice(0, 10)}`, hours[at] ?? 0]),
    )
  }

  const id = await made('nightly')
  await made(null) // of a fork
  clock.advance(6 * HOUR_MS)
  await rollUp.run(never)
  assert.deepEqual(await usage(), { 'nightly 2026-11-23': 60 })
  clock.advance(DAY_MS)
  assert.deepEqual(await usage(), { 'nightly 2026-11-23': 120, 'nightly 2026-11-24': 180 })
  await rollUp.run(never)
  await rollUp.run(never)
  assert.deepEqual(await usage(), { 'nightly 2026-11-23': 120, 'nightly 2026-11-24': 180 })
  clock.advance(HOUR_MS)
  await deleteSnapshot(deps, caller, { id })
  clock.advance(DAY_MS)
  await rollUp.run(never)
  assert.deepEqual(await usage(), { 'deleted 2026-11-23': 120, 'deleted 2026-11-24': 190 })
  await made('weekly')
  clock.advance(HOUR_MS)
  const first = await usage()
  await made('weekly', true)
  clock.advance(HOUR_MS)
  const both = Object.entries(await usage()).reduce((sum, [, hours]) => sum + hours, 0)
  assert.equal(both, Object.entries(first).reduce((sum, [, hours]) => sum + hours, 0) + 10, 'one of the two at a time')
})

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { ObservedRun, SyncRequest } from '../../../src/contract/workers/worker-protocol.ts'
import { holdSync } from '../../../src/control/workers/hold-sync.ts'
import type { RunId, SandboxId } from '../../../src/domain/ids.ts'
import { isLaterReport } from '../../../src/domain/workers/lease.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { makeUuids } from '../../../src/lib/uuid.ts'
import { reportOf } from '../../support/report.ts'
import { waitUntil } from '../../support/wait.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'

// Tests of reports that are recorded late, for example because the server process that received them was frozen.

let world: WorkerWorld
before(async () => {
  world = await makeWorkerWorld()
})
after(() => world.close())

const uuids = makeUuids(systemClock, systemRandom)
const nextIncarnation = (): string => uuids.next()
const NO_TICKETS = { openTickets: () => [] }

type Sent = { readonly incarnation: string; readonly seq: number; readonly seen?: readonly ObservedRun[] }
const withoutVolumes = (): Partial<SyncRequest> => ({})
const withVolumes = (): Partial<SyncRequest> => ({ volumes: [] })

/** Sends a report, and disconnects as soon as the control plane has recorded it. */
async function send({ incarnation, seq, seen = [] }: Sent, also = withoutVolumes()): Promise<void> {
  const hungUp = new AbortController()
  const report = reportOf(world.worker_id, { incarnation, seq, observed_runs: seen, ...also })
  const onRecorded = (): void => hungUp.abort()
  await holdSync({ ...world.control.deps, tickets: NO_TICKETS, onRecorded }, report, hungUp.signal)
}

async function row(): Promise<{
  readonly incarnation: string
  readonly report_seq: number
  readonly lease_expires_at: Date
}> {
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<{ incarnation: string; report_seq: number; lease_expires_at: Date }>({
      text: 'SELECT life AS incarnation, report_seq, lease_expires_at FROM workers WHERE id = $1',
      values: [world.worker_id],
    }),
  )
  const [found] = rows
  assert.ok(found)
  return found
}

async function placedRunOf(sandbox: SandboxId): Promise<RunId | false> {
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<{ id: RunId }>({
      text: 'SELECT id FROM runs WHERE sandbox_id = $1 AND worker_id IS NOT NULL',
      values: [sandbox],
    }),
  )
  return rows[0]?.id ?? false
}

test('of two reports the one of the later incarnation is later, and within an incarnation the one with the greater number', () => {
  const [first, second] = [nextIncarnation(), nextIncarnation()]
  assert.equal(isLaterReport({ incarnation: second, seq: 1 }, { incarnation: first, seq: 9 }), true)
  assert.equal(isLaterReport({ incarnation: first, seq: 9 }, { incarnation: second, seq: 1 }), false)
  assert.equal(isLaterReport({ incarnation: first, seq: 2 }, { incarnation: first, seq: 1 }), true)
  assert.equal(isLaterReport({ incarnation: first, seq: 1 }, { incarnation: first, seq: 1 }), false)
})

for (const [kind, also] of [
  ['a report without volumes', withoutVolumes],
  ['a report with volumes', withVolumes],
] as const)
  test(`${kind} of an earlier incarnation is refused, changes nothing and prolongs no lease, until the lease is over`, async () => {
    const [earlier, later] = [nextIncarnation(), nextIncarnation()]
    await send({ incarnation: later, seq: 1 }, also())
    const { id } = await world.create()
    const run_id = await waitUntil(() => placedRunOf(id))
    const seen: readonly ObservedRun[] = [{ run_id, sandbox_id: id, phase: 'running' }]
    await send({ incarnation: later, seq: 2, seen }, also())
    assert.equal((await world.statusOf(id)).status, 'running')

    const before = await row()
    await assert.rejects(send({ incarnation: earlier, seq: 99 }, also()), { code: 'worker_life_over' })
    // A report of the same incarnation is answered, and also changes nothing.
    await send({ incarnation: later, seq: 1 }, also())
    assert.deepEqual(await row(), before)
    assert.equal((await world.statusOf(id)).status, 'running')

    await world.control.deps.db.asSystem((q) =>
      q.query({ text: `UPDATE workers SET lease_expires_at = now() - interval '1 minute'` }),
    )
    await send({ incarnation: earlier, seq: 100, seen }, also())
    assert.deepEqual([(await row()).incarnation, (await row()).report_seq], [earlier, 100])
    assert.equal((await world.statusOf(id)).status, 'running')
  })

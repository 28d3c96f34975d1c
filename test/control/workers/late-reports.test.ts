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

// Reports of a worker's lives that arrive late: they lay with a server process that stood still, say.

let world: WorkerWorld
before(async () => {
  world = await makeWorkerWorld()
})
after(() => world.close())

const uuids = makeUuids(systemClock, systemRandom)
const nextLife = (): string => uuids.next()
const NO_TICKETS = { openTickets: () => [] }

type Sent = { readonly life: string; readonly seq: number; readonly seen?: readonly ObservedRun[] }
const asPlain = (): Partial<SyncRequest> => ({})
const withVolumes = (): Partial<SyncRequest> => ({ volumes: [] })

/** Sends a report, and hangs up once it was taken in. */
async function send({ life, seq, seen = [] }: Sent, also = asPlain()): Promise<void> {
  const hungUp = new AbortController()
  const report = reportOf(world.worker_id, { incarnation: life, seq, observed_runs: seen, ...also })
  const onRecorded = (): void => hungUp.abort()
  await holdSync({ ...world.control.deps, tickets: NO_TICKETS, onRecorded }, report, hungUp.signal)
}

async function row(): Promise<{ readonly life: string; readonly report_seq: number; readonly lease_expires_at: Date }> {
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<{ life: string; report_seq: number; lease_expires_at: Date }>({
      text: 'SELECT life, report_seq, lease_expires_at FROM workers WHERE id = $1',
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

test('of a worker’s reports the one of the later life is later, and within a life the one with the greater number', () => {
  const [first, second] = [nextLife(), nextLife()]
  assert.equal(isLaterReport({ incarnation: second, seq: 1 }, { incarnation: first, seq: 9 }), true)
  assert.equal(isLaterReport({ incarnation: first, seq: 9 }, { incarnation: second, seq: 1 }), false)
  assert.equal(isLaterReport({ incarnation: first, seq: 2 }, { incarnation: first, seq: 1 }), true)
  assert.equal(isLaterReport({ incarnation: first, seq: 1 }, { incarnation: first, seq: 1 }), false)
})

for (const [kind, also] of [
  ['a plain report', asPlain],
  ['a report with volumes', withVolumes],
] as const)
  test(`${kind} of an earlier life is refused, moves nothing and prolongs no lease until there is none`, async () => {
    const [earlier, later] = [nextLife(), nextLife()]
    await send({ life: later, seq: 1 }, also())
    const { id } = await world.create()
    const run_id = await waitUntil(() => placedRunOf(id))
    const seen: readonly ObservedRun[] = [{ run_id, sandbox_id: id, phase: 'running' }]
    await send({ life: later, seq: 2, seen }, also())
    assert.equal((await world.statusOf(id)).status, 'running')

    const before = await row()
    await assert.rejects(send({ life: earlier, seq: 99 }, also()), { code: 'worker_life_over' })
    await send({ life: later, seq: 1 }, also()) // of the same life: it is answered, and moves nothing either
    assert.deepEqual(await row(), before)
    assert.equal((await world.statusOf(id)).status, 'running')

    await world.control.deps.db.asSystem((q) =>
      q.query({ text: `UPDATE workers SET lease_expires_at = now() - interval '1 minute'` }),
    )
    await send({ life: earlier, seq: 100, seen }, also())
    assert.deepEqual([(await row()).life, (await row()).report_seq], [earlier, 100])
    assert.equal((await world.statusOf(id)).status, 'running')
  })

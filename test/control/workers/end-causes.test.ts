import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { ObservedRun } from '../../../src/contract/workers/worker-protocol.ts'
import { holdSync } from '../../../src/control/workers/hold-sync.ts'
import type { RunId } from '../../../src/domain/ids.ts'
import type { RunOutcome } from '../../../src/domain/sandboxes/run.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { makeUuids } from '../../../src/lib/uuid.ts'
import { reportOf } from '../../support/report.ts'
import { waitUntil } from '../../support/wait.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'

let world: WorkerWorld
before(async () => {
  world = await makeWorkerWorld()
})
after(() => world.close())

const uuids = makeUuids(systemClock, systemRandom)

const ENDS: Readonly<Record<string, RunOutcome>> = {
  worker_report: { kind: 'start_failed', reason: 'image', message: 'no such image' },
  workload_ended: { kind: 'exited', code: 1 },
}

for (const [cause, outcome] of Object.entries(ENDS))
  test(`the event of a run that ends with ${outcome.kind} has the cause ${cause}`, async () => {
    const incarnation = uuids.next()
    const send = async (seq: number, observed_runs: readonly ObservedRun[]): Promise<void> => {
      const hungUp = new AbortController()
      const report = reportOf(world.worker_id, { incarnation, seq, observed_runs })
      const onRecorded = (): void => hungUp.abort()
      await holdSync({ ...world.control.deps, tickets: { openTickets: () => [] }, onRecorded }, report, hungUp.signal)
    }
    await send(1, [])
    const { id: sandbox_id } = await world.create()
    const query = <Row extends object>(text: string): Promise<Row | undefined> =>
      world.control.deps.db.asSystem(async (q) => (await q.query<Row>({ text, values: [sandbox_id] })).rows[0])
    const placed = 'SELECT id FROM runs WHERE sandbox_id = $1 AND worker_id IS NOT NULL'
    const { id: run_id } = await waitUntil(async () => (await query<{ id: RunId }>(placed)) ?? false)
    await send(2, [{ run_id, sandbox_id, phase: 'ended', outcome }])
    assert.deepEqual(
      await query(
        `SELECT event_type, payload ->> 'cause' AS cause FROM events
         WHERE payload ->> 'sandbox_id' = $1 ORDER BY id DESC LIMIT 1`,
      ),
      { event_type: 'sandbox_failed', cause },
    )
  })
